// The simulated device: compiled parts run on the cpu executor with the profile's roundings put
// between their nodes, in memory and time that are accounted as the device's.
#pragma once

#include <memory>

#include "backend/sim_profile.h"

namespace npu::sim {

// The graph with every rounding of the profile as a node.
Graph with_roundings(const Profile& profile, const Graph& part);

std::unique_ptr<Device> open_device(std::shared_ptr<const Profile> profile, int threads);

}  // namespace npu::sim
