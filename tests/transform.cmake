npu_test(transform_ir_test SOURCES transform_ir_test.cpp random_graph.cpp LINK npu_transform)
npu_test(transform_vjp_test
  SOURCES transform_vjp_test.cpp random_graph.cpp llama_layer.cpp
  LINK npu_transform)
npu_test(transform_partition_test
  SOURCES transform_partition_test.cpp random_graph.cpp llama_layer.cpp
  LINK npu_transform)
npu_test(transform_property_test
  SOURCES transform_property_test.cpp random_graph.cpp
  LINK npu_transform)
