npu_test(train_test SOURCES train_test.cpp LINK npu_train npu_io)
npu_test(golden_test SOURCES golden_test.cpp golden_fixture.cpp LINK npu_train npu_io nlohmann_json::nlohmann_json)
npu_test(runner_test SOURCES runner_test.cpp golden_fixture.cpp LINK npu_train npu_io nlohmann_json::nlohmann_json)
npu_test(numerics_test SOURCES numerics_test.cpp golden_fixture.cpp LINK npu_train npu_io)
npu_test(loss_scale_test SOURCES loss_scale_test.cpp golden_fixture.cpp LINK npu_train npu_io nlohmann_json::nlohmann_json)
npu_test(serve_gap_test SOURCES serve_gap_test.cpp LINK npu_train)
npu_test(drift_test SOURCES drift_test.cpp golden_fixture.cpp LINK npu_train npu_io)
npu_test(placement_test SOURCES placement_test.cpp compile_fakes.cpp golden_fixture.cpp
  LINK npu_train npu_io)
npu_test(diagnose_test SOURCES diagnose_test.cpp compile_fakes.cpp LINK npu_train npu_compile)
npu_test(head_loss_test SOURCES head_loss_test.cpp LINK npu_train)
npu_test(sim_train_test SOURCES sim_train_test.cpp golden_fixture.cpp LINK npu_train npu_io nlohmann_json::nlohmann_json LABEL slow)

add_executable(tcl_texts tools/tcl_texts.cpp)
target_include_directories(tcl_texts PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(tcl_texts PRIVATE npu_backend_cases npu_train npu_io nlohmann_json::nlohmann_json)
npu_test(tcl_test SOURCES tcl_test.cpp tools/tcl_geometry.cpp tools/tcl_interpreter.cpp
  LINK npu_backend_cases npu_train npu_io nlohmann_json::nlohmann_json)
npu_test(tcl_graph_test SOURCES tcl_graph_test.cpp tools/tcl_graph.cpp tools/tcl_interpreter.cpp
  LINK npu_train npu_io nlohmann_json::nlohmann_json)
npu_test(tcl_estimates_test SOURCES tcl_estimates_test.cpp tools/tcl_geometry.cpp
  LINK npu_train npu_io nlohmann_json::nlohmann_json)
