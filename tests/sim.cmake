npu_test(sim_profile_test SOURCES sim_profile_test.cpp LINK npu_backend)
npu_test(sim_test SOURCES sim_test.cpp LINK npu_backend)
npu_test(sim_compile_test SOURCES sim_compile_test.cpp compile_fakes.cpp LINK npu_compile)
