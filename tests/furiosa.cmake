# The furiosa backend over a stand-in for the vendor's compiler.
add_executable(fake_furiosa_tcc tools/fake_furiosa_tcc.cpp)
npu_test(furiosa_test SOURCES furiosa_test.cpp LINK npu_backend)
npu_test(furiosa_compile_test SOURCES furiosa_compile_test.cpp compile_fakes.cpp LINK npu_compile)
foreach(test furiosa_test furiosa_compile_test)
  target_compile_definitions(${test} PRIVATE NPU_FAKE_TCC="$<TARGET_FILE:fake_furiosa_tcc>")
  add_dependencies(${test} fake_furiosa_tcc)
endforeach()
# Against the real compiler, where it is installed: no ctest entry, `scripts/test.sh vendor` runs it.
add_executable(furiosa_vendor_test furiosa_vendor_test.cpp)
target_link_libraries(furiosa_vendor_test PRIVATE npu_backend GTest::gtest_main)

# Cards through both workers, over stand-ins of the vendor's runtimes: a C library and a Python
# package, which let one program compute.
add_executable(fake_rngd_compute tools/fake_rngd_compute.cpp tools/tcl_graph.cpp)
target_include_directories(fake_rngd_compute PRIVATE tools ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(fake_rngd_compute PRIVATE npu_backend)
add_library(fake_device_runtime SHARED tools/fake_device_runtime.cpp)
add_library(fake_device_runtime_lacking SHARED tools/fake_device_runtime.cpp)
target_compile_definitions(fake_device_runtime_lacking PRIVATE FAKE_LACKS_SYMBOLS)
# It is opened by an interpreter too, which has no sanitizer.
target_compile_options(fake_device_runtime_lacking PRIVATE -fno-sanitize=all)
target_link_options(fake_device_runtime_lacking PRIVATE -fno-sanitize=all)
add_library(npu_furiosa_cards STATIC furiosa_cards.cpp)
target_include_directories(npu_furiosa_cards PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(npu_furiosa_cards PUBLIC npu_backend GTest::gtest)
target_compile_definitions(npu_furiosa_cards PUBLIC
  NPU_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
  NPU_FAKE_COMPUTE="$<TARGET_FILE:fake_rngd_compute>"
  NPU_FAKE_RUNTIME="$<TARGET_FILE:fake_device_runtime>"
  NPU_FAKE_RUNTIME_LACKING="$<TARGET_FILE:fake_device_runtime_lacking>")
add_dependencies(npu_furiosa_cards fake_rngd_compute fake_device_runtime
                 fake_device_runtime_lacking)
npu_test(furiosa_device_test SOURCES furiosa_device_test.cpp
  LINK npu_furiosa_cards npu_backend_cases npu_transform)
npu_test(furiosa_faults_test SOURCES furiosa_faults_test.cpp compile_fakes.cpp
  LINK npu_furiosa_cards npu_compile)
npu_test(furiosa_train_test SOURCES furiosa_train_test.cpp golden_fixture.cpp compile_fakes.cpp
  LINK npu_furiosa_cards npu_train npu_io nlohmann_json::nlohmann_json)
target_compile_definitions(furiosa_train_test PRIVATE NPU_FAKE_TCC="$<TARGET_FILE:fake_furiosa_tcc>")
add_dependencies(furiosa_train_test fake_furiosa_tcc)
npu_test(furiosa_torch_test SOURCES furiosa_torch_test.cpp compile_fakes.cpp
  LINK npu_furiosa_cards npu_backend_cases npu_compile)
target_compile_definitions(furiosa_torch_test PRIVATE NPU_FAKE_TCC="$<TARGET_FILE:fake_furiosa_tcc>")
add_dependencies(furiosa_torch_test fake_furiosa_tcc)
