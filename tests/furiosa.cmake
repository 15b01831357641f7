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
