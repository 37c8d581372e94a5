# Short forms for Tandem's targets.

find_package(Threads REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
if(TANDEM_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# tandem_library(NAME SOURCES … DEPS …): a static library with Tandem's include roots.
function(tandem_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} Threads::Threads)
endfunction()

# tandem_test(NAME SOURCES … DEPS … [LABELS …] [TIMEOUT seconds]): a GoogleTest program, one ctest entry for it all.
function(tandem_test name)
  if(NOT TANDEM_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
