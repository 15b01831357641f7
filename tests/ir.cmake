npu_test(ir_test SOURCES ir_test.cpp LINK npu_ops)
