npu_test(base_test SOURCES base_test.cpp LINK npu_base)
npu_test(process_test SOURCES process_test.cpp LINK npu_base)
npu_test(tensor_test SOURCES tensor_test.cpp LINK npu_tensor)
