npu_test(op_table_test SOURCES op_table_test.cpp LINK npu_ops)
npu_test(ops_test SOURCES ops_test.cpp LINK npu_transform)
