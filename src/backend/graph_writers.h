// Writes a graph in the formats that vendor compilers read. Both writers walk the graph and let
// each op's row (its `openvino` or `onnx` lowering) say what it becomes.
#pragma once

#include <map>
#include <string>

#include "ir/graph.h"

namespace npu {

// Inputs that are written as constants with these values, by position among the graph's inputs.
using ConstantInputs = std::map<size_t, Tensor>;

// OpenVINO IR, version 11: the XML text; constants (axes, shapes, scalars) go to `weights`, the
// contents of the .bin file. Inputs and outputs keep their names as tensor names and their order.
std::string write_openvino_ir(const Graph& graph, std::string* weights,
                              const ConstantInputs& constants = {});

// A serialized ONNX ModelProto, opset 17, IR version 8, written without the protobuf library so
// that none of its versions can clash with one that a vendor's library brings along. The values of
// `constants` are not in it: they are initializers "in external data", handed over beside the bytes
// under the inputs' names.
std::string write_onnx(const Graph& graph, const ConstantInputs& constants = {});

}  // namespace npu
