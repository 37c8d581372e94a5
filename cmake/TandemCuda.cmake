# Decides whether the CUDA backend is built, and sets TANDEM_HAVE_CUDA.
#   TANDEM_CUDA=AUTO  where a GPU is present (/dev/nvidia0) and the toolkit is found
#   TANDEM_CUDA=ON    always: an error says what of the toolkit is missing
#   TANDEM_CUDA=OFF   never
# The CUDA language of CMake is not enabled: kernels are few, are compiled by a rule of their own (tandem_cuda_objects),
# and the flags of host sanitizers and warnings must not reach nvcc. Nothing links libcuda, libcublasLt or libnccl: they
# are loaded when a backend is made, so every program starts on a machine without a GPU.

set(TANDEM_HAVE_CUDA OFF)
if(TANDEM_CUDA STREQUAL "ON" OR (TANDEM_CUDA STREQUAL "AUTO" AND EXISTS /dev/nvidia0))
  find_program(TANDEM_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(TANDEM_NVCC)
    get_filename_component(tandem_nvcc_real "${TANDEM_NVCC}" REALPATH)
    get_filename_component(tandem_cuda_bin "${tandem_nvcc_real}" DIRECTORY)
    get_filename_component(tandem_cuda_root "${tandem_cuda_bin}" DIRECTORY)
  endif()
  find_path(TANDEM_CUDA_INCLUDE cublasLt.h HINTS "${tandem_cuda_root}/include"
    "${tandem_cuda_root}/targets/x86_64-linux/include")
  find_path(TANDEM_NCCL_INCLUDE nccl.h HINTS "${TANDEM_CUDA_INCLUDE}")
  find_library(TANDEM_CUDART cudart_static HINTS "${tandem_cuda_root}/lib64" "${tandem_cuda_root}/lib"
    "${tandem_cuda_root}/targets/x86_64-linux/lib")
  set(tandem_cuda_missing "")
  foreach(part TANDEM_NVCC TANDEM_CUDA_INCLUDE TANDEM_NCCL_INCLUDE TANDEM_CUDART)
    if(NOT ${part})
      list(APPEND tandem_cuda_missing ${part})
    endif()
  endforeach()
  if(NOT tandem_cuda_missing)
    set(TANDEM_HAVE_CUDA ON)
    message(STATUS "CUDA backend: ${TANDEM_NVCC}")
  elseif(TANDEM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TANDEM_CUDA=ON needs the CUDA toolkit 13 (nvcc, cublasLt.h, libcudart_static.a) and nccl.h; "
      "not found: ${tandem_cuda_missing}. Put nvcc on the PATH or set CUDA_PATH, or use -DTANDEM_CUDA=OFF.")
  else()
    message(STATUS "CUDA backend: not built, not found: ${tandem_cuda_missing}")
  endif()
else()
  message(STATUS "CUDA backend: not built (TANDEM_CUDA=${TANDEM_CUDA})")
endif()

set(TANDEM_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPU architectures of the kernels")

# tandem_cuda_objects(OUTPUT_VARIABLE [DEFINE macro prefix] source.cu …): compiles kernels to object files. With DEFINE the
# macro is set, and the objects' names begin with the prefix: one source may be compiled in two ways.
function(tandem_cuda_objects output)
  set(sources ${ARGN})
  set(define "")
  set(prefix "")
  list(GET sources 0 first)
  if(first STREQUAL "DEFINE")
    list(GET sources 1 define)
    list(GET sources 2 prefix)
    list(REMOVE_AT sources 0 1 2)
    set(define "-D${define}")
  endif()
  set(objects "")
  set(targets "")
  foreach(architecture ${TANDEM_CUDA_ARCHITECTURES})
    list(APPEND targets "-gencode=arch=compute_${architecture},code=sm_${architecture}")
  endforeach()
  set(launcher "")
  if(TANDEM_CCACHE)
    set(launcher "${TANDEM_CCACHE}")
  endif()
  foreach(source ${sources})
    get_filename_component(name "${source}" NAME_WE)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${prefix}${name}.cu.o")
    add_custom_command(OUTPUT "${object}"
      COMMAND ${launcher} "${TANDEM_NVCC}" -ccbin "${CMAKE_CXX_COMPILER}" -std=c++20 -O3 ${define} ${targets} "-I${CMAKE_SOURCE_DIR}"
        "-I${CMAKE_SOURCE_DIR}/common/include" "-I${TANDEM_CUDA_INCLUDE}" -Xcompiler=-fPIC,-Wall -Werror=all-warnings
        -MD -MF "${object}.d" -c "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -o "${object}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}" DEPFILE "${object}.d"
      COMMENT "nvcc ${define} ${source}" VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set(${output} ${objects} PARENT_SCOPE)
endfunction()
