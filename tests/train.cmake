npu_test(train_test SOURCES train_test.cpp LINK npu_train npu_io)
npu_test(golden_test SOURCES golden_test.cpp golden_fixture.cpp LINK npu_train npu_io nlohmann_json::nlohmann_json)
npu_test(runner_test SOURCES runner_test.cpp golden_fixture.cpp LINK npu_train npu_io nlohmann_json::nlohmann_json)
npu_test(sim_train_test SOURCES sim_train_test.cpp golden_fixture.cpp LINK npu_train npu_io nlohmann_json::nlohmann_json LABEL slow)
