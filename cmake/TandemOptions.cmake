# Options of the build and the flags that follow from them.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# One place for what runs and one for what is loaded, as in an installed tree: programs find each other beside
# themselves.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")

set(TANDEM_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO (where a GPU is present)")
set(TANDEM_SANITIZE "" CACHE STRING "Sanitizers for the whole build: address,undefined or thread")
option(TANDEM_TESTS "Build the tests" ON)
option(TANDEM_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(TANDEM_WERROR "Treat warnings as errors" OFF)
option(TANDEM_DEBUG_INFO "Keep -g in RelWithDebInfo; without it builds are a tenth quicker" ON)
if(NOT TANDEM_DEBUG_INFO)
  string(REPLACE "-g" "" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
endif()
set(TANDEM_TORCH_PYTHON "" CACHE FILEPATH
  "A Python with torch and numpy: the kernels for PyTorch are built, and ctest runs the Python package's tests")
set(TANDEM_C10D_TORCH "" CACHE STRING
  "Packages of further versions of torch, as client/torch/distributed/fetch_torch lists them: eager collectives are built for each")
set(TANDEM_JAX_PYTHON "${TANDEM_TORCH_PYTHON}" CACHE FILEPATH
  "A Python with jax: the calls of tandem.jax are built, and ctest runs their tests. Default: TANDEM_TORCH_PYTHON")
option(TANDEM_RELOCATABLE "Programs and libraries find what they link beside themselves, as a bundle needs" OFF)

option(TANDEM_HARDENING "Harden programs and libraries as packages are: FORTIFY, stack protector, PIE, BIND_NOW" OFF)
option(TANDEM_BUNDLE_GRPC "Install the client with a gRPC of its own, so that it needs the C and C++ libraries only" OFF)
option(TANDEM_SYSTEM_FILES "Install units, accounts, man pages and configuration where the system looks for them" OFF)

if(NOT CMAKE_BUILD_TYPE)
  set(default_build_type RelWithDebInfo)
  if(TANDEM_SANITIZE)
    set(default_build_type Debug)
  endif()
  set(CMAKE_BUILD_TYPE "${default_build_type}" CACHE STRING "Debug, Release, RelWithDebInfo" FORCE)
endif()
option(CMAKE_UNITY_BUILD "Compile the sources of a target as one: each header is parsed once a target" OFF)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 0 CACHE STRING "The most sources in one; 0: all of the target")
if(TANDEM_SANITIZE)  # quick enough to run, and reports have line numbers
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
endif()

find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${TANDEM_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER "${TANDEM_CCACHE}")
endif()

if(TANDEM_RELOCATABLE)
  # DT_RPATH, not DT_RUNPATH: it also holds for the libraries' own libraries, which come from the distribution.
  set(CMAKE_BUILD_RPATH "$ORIGIN/../lib;$ORIGIN/../../lib;$ORIGIN")
  set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
  add_link_options("LINKER:--disable-new-dtags")
endif()

add_compile_options(-Wall -Wextra)
if(TANDEM_WERROR)
  add_compile_options(-Werror)
endif()

if(TANDEM_SANITIZE)
  add_compile_options(-fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TANDEM_SANITIZE})
  add_compile_definitions(TANDEM_SANITIZED=1)
endif()

if(TANDEM_HARDENING)
  if(TANDEM_SANITIZE)
    message(FATAL_ERROR "TANDEM_HARDENING and TANDEM_SANITIZE exclude each other: FORTIFY hides what sanitizers look for")
  endif()
  include(CheckPIESupported)
  check_pie_supported()  # without it CMake compiles for PIE and leaves the link to the compiler's default
  include(CheckCXXCompilerFlag)
  add_compile_options(-fstack-protector-strong -Wformat -Werror=format-security)
  # FORTIFY needs an optimising compiler.
  add_compile_options("$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE>" "$<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>")
  foreach(flag -fstack-clash-protection -fcf-protection)  # not of every processor
    string(MAKE_C_IDENTIFIER "TANDEM_HAS${flag}" found)
    check_cxx_compiler_flag(${flag} ${found})
    if(${found})
      add_compile_options(${flag})
    endif()
  endforeach()
  add_link_options(LINKER:-z,relro LINKER:-z,now)
endif()
