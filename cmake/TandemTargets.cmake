# Short forms for Tandem's targets.

find_package(Threads REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
if(TANDEM_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# tandem_include_root(TARGET SCOPE): includes are written from the repository's root ("daemon/control/control.h").
function(tandem_include_root target scope)
  target_include_directories(${target} ${scope} "$<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>")
endfunction()

# tandem_library(NAME SOURCES … DEPS …): a static library. Public headers come with the targets that own them.
function(tandem_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  tandem_include_root(${name} PUBLIC)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} Threads::Threads)
endfunction()

# tandem_test(NAME SOURCES … DEPS … [LABELS …] [TIMEOUT seconds] [NO_CORE] [ONE_THREAD] [OPTIMIZED]): a GoogleTest program with
# one ctest entry. Unit tests also get the labels "core" (built with ASan+UBSan) and "threads" (built with TSan).
#   NO_CORE     neither: the test links libraries without instrumentation (gRPC), in which TSan reports false races.
#   OPTIMIZED   the test computes much itself.
#   ONE_THREAD  no "threads": the code under test starts no thread and shares nothing, so TSan has nothing to find.
foreach(part core threads)
  if(NOT TARGET ${part}_tests)
    add_custom_target(${part}_tests)
  endif()
endforeach()
function(tandem_test name)
  if(NOT TANDEM_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "NO_CORE;ONE_THREAD;OPTIMIZED" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  set(cost ${ARG_TIMEOUT})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
    set(cost 120)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests/bin")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  if("unit" IN_LIST ARG_LABELS AND NOT ARG_NO_CORE)
    list(APPEND ARG_LABELS core)
    add_dependencies(core_tests ${name})
    if(NOT ARG_ONE_THREAD)
      list(APPEND ARG_LABELS threads)
      add_dependencies(threads_tests ${name})
    endif()
  endif()
  if(TANDEM_SANITIZE OR NOT (TANDEM_HARDENING OR ARG_OPTIMIZED))
    target_compile_options(${name} PRIVATE -O0)  # halves the time to compile test code; the libraries are optimized
  endif()
  if(TANDEM_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # What may take long starts first.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} COST ${cost} LABELS "${ARG_LABELS}")
endfunction()
