npu_test(cache_test SOURCES cache_test.cpp LINK npu_compile)
npu_test(compile_test SOURCES compile_test.cpp compile_fakes.cpp LINK npu_compile)
npu_test(runtime_test SOURCES runtime_test.cpp compile_fakes.cpp LINK npu_compile)
npu_test(adaptive_cut_test
  SOURCES adaptive_cut_test.cpp compile_fakes.cpp random_graph.cpp
  LINK npu_compile)
npu_test(cut_search_test SOURCES cut_search_test.cpp compile_fakes.cpp LINK npu_compile)
