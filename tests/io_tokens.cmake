npu_test(tokenizer_test SOURCES tokenizer_test.cpp LINK npu_io)
npu_test(chat_template_test SOURCES chat_template_test.cpp LINK npu_io)
npu_test(dataset_test SOURCES dataset_test.cpp batcher_test.cpp LINK npu_io)
