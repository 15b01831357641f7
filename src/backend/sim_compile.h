// The simulated compiler: what it refuses and how it fails, and the bytes that it makes.
#pragma once

#include <optional>
#include <string>

#include "backend/sim_profile.h"

namespace npu::sim {

// Why the device cannot compute this node; nothing when it can.
std::optional<std::string> unsupported_node(const Profile& profile, const Graph& graph, NodeId id);

// The first rejection whose pattern occurs in the graph.
const Rejection* find_rejection(const Profile& profile, const Graph& graph);

// As a vendor's compiler would: the crash is a crash of this process. With inputs_by_use the
// compiled part has its own list of inputs, in the order in which nodes read them, last first: each
// once however often it is given, and none that nothing reads. Names are kept.
Result<Blob> compile_part(const Profile& profile, const Graph& part);

// The compiled part, with its own order of inputs. Errors: damaged bytes, another profile's blob.
Result<Graph> decode_blob(const Profile& profile, const Blob& blob);

}  // namespace npu::sim
