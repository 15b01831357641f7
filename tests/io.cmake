include(${CMAKE_CURRENT_LIST_DIR}/io_files.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/io_tokens.cmake)
