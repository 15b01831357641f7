npu_test(io_files_test
  SOURCES io_json_test.cpp io_safetensors_test.cpp io_gguf_test.cpp io_gguf_model_test.cpp
          io_config_test.cpp io_peft_test.cpp
  LINK npu_io)

# What this program reads, as JSON, for tests/interop.
add_executable(io_probe io_probe.cpp)
target_link_libraries(io_probe PRIVATE npu_io)
