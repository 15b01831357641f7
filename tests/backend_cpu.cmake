npu_test(backend_cpu_test
  SOURCES backend_cpu_test.cpp cpu_plan_test.cpp cpu_matmul_test.cpp cpu_packed_test.cpp cpu_window_test.cpp random_graph.cpp
  LINK npu_backend npu_transform npu_model)
