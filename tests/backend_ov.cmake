# Every usable backend against the meaning of the graphs. Backends of vendors start a runtime and
# compile, so their cases are a slow test of their own. The environment variable NPU_EXPECT_BACKENDS
# ("cpu,openvino:CPU") names backends that must be usable: without it an absent one only means fewer cases.
add_library(npu_backend_cases STATIC backend_cases.cpp)
target_include_directories(npu_backend_cases PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(npu_backend_cases PUBLIC npu_backend npu_transform npu_model)

npu_test(backend_conformance_test SOURCES backend_conformance_test.cpp LINK npu_backend_cases)
set_tests_properties(backend_conformance_test PROPERTIES ENVIRONMENT
                     "GTEST_FILTER=-*_openvino_*")
add_test(NAME backend_conformance_openvino
         COMMAND backend_conformance_test --gtest_filter=*_openvino_*:Backends.*)
set_tests_properties(backend_conformance_openvino PROPERTIES LABELS slow TIMEOUT 900)

# Writes each row sample as ONNX and OpenVINO IR with inputs and expected outputs, for tests/interop.
add_executable(op_cases tools/op_cases.cpp)
target_link_libraries(op_cases PRIVATE npu_backend_cases nlohmann_json::nlohmann_json)

# Stand-ins for OpenVINO's library: one that works, the others wrong in one way each.
function(npu_fake_openvino suffix)
  add_library(fake_openvino${suffix} SHARED tools/fake_openvino.cpp)
  target_compile_definitions(fake_openvino${suffix} PRIVATE ${ARGN})
endfunction()
npu_fake_openvino("")
npu_fake_openvino(_lacking FAKE_LACKS_SYMBOLS)
npu_fake_openvino(_reads_bf16 FAKE_PRECISION="bf16")
npu_fake_openvino(_rounds FAKE_ROUNDS)
npu_fake_openvino(_renumbered FAKE_F32_NUMBER=5)
npu_fake_openvino(_refusing FAKE_REFUSES)
npu_fake_openvino(_rounds_constants FAKE_ROUNDS_CONSTANTS)
npu_fake_openvino(_refusing_constants FAKE_REFUSES_CONSTANTS)
npu_test(openvino_test SOURCES openvino_test.cpp LINK npu_backend)
target_compile_definitions(openvino_test PRIVATE NPU_FAKE_DIR="${CMAKE_CURRENT_BINARY_DIR}")
add_dependencies(openvino_test fake_openvino fake_openvino_lacking fake_openvino_reads_bf16
                 fake_openvino_rounds fake_openvino_renumbered fake_openvino_refusing
                 fake_openvino_rounds_constants fake_openvino_refusing_constants)

# The same for ONNX Runtime's library.
function(npu_fake_onnxruntime suffix)
  add_library(fake_onnxruntime${suffix} SHARED tools/fake_onnxruntime.cpp)
  target_compile_definitions(fake_onnxruntime${suffix} PRIVATE ${ARGN})
endfunction()
npu_fake_onnxruntime("")
npu_fake_onnxruntime(_old FAKE_OLD)
npu_fake_onnxruntime(_rounds FAKE_ROUNDS)
npu_fake_onnxruntime(_renumbered FAKE_F32_NUMBER=11)
npu_fake_onnxruntime(_refusing FAKE_REFUSES)
npu_fake_onnxruntime(_rounds_constants FAKE_ROUNDS_CONSTANTS)
npu_fake_onnxruntime(_refusing_constants FAKE_REFUSES_CONSTANTS)
npu_fake_onnxruntime(_failing FAKE_FAILS_TO_RUN)
npu_test(ort_test SOURCES ort_test.cpp LINK npu_backend npu_transform)
target_compile_definitions(ort_test PRIVATE NPU_FAKE_DIR="${CMAKE_CURRENT_BINARY_DIR}")
add_dependencies(ort_test fake_openvino fake_onnxruntime fake_onnxruntime_old
                 fake_onnxruntime_rounds fake_onnxruntime_renumbered fake_onnxruntime_refusing
                 fake_onnxruntime_failing fake_onnxruntime_rounds_constants
                 fake_onnxruntime_refusing_constants)
npu_test(frozen_inputs_test SOURCES frozen_inputs_test.cpp LINK npu_backend)
