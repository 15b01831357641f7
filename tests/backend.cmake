include(${CMAKE_CURRENT_LIST_DIR}/backend_cpu.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/backend_ov.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/sim.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/furiosa.cmake)
