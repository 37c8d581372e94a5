# Installs the client of BUILD under WORK/prefix, builds the consumers against it by find_package and by pkg-config, and runs them
# and the installed programs.
# cmake -DBUILD=… -DSOURCE=… -DWORK=… [-DCC=… -DCXX=…] -P run.cmake
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${ARGN}: ${failed}")
  endif()
endfunction()

function(capture variable)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    message(FATAL_ERROR "${ARGN}: ${failed}")
  endif()
  separate_arguments(output UNIX_COMMAND "${output}")
  set(${variable} "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK}")
run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/prefix" --component client)
run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/prefix" --component client_dev)

# The build tree's programs are in PATH, and before the installed ones: the installed package is found all the same.
set(path "PATH=${BUILD}/bin:${WORK}/prefix/bin:$ENV{PATH}")
run(${CMAKE_COMMAND} -E env ${path} ${CMAKE_COMMAND} -S "${SOURCE}" -B "${WORK}/build")
run(${CMAKE_COMMAND} --build "${WORK}/build")
run("${WORK}/build/consumer")
run("${WORK}/build/c_consumer")

# In a prefix that was moved, pkg-config still says where everything is.
file(RENAME "${WORK}/prefix" "${WORK}/moved")
file(GLOB_RECURSE pc "${WORK}/moved/*/tandem.pc")
get_filename_component(pc_dir "${pc}" DIRECTORY)
find_program(PKG_CONFIG pkg-config REQUIRED)
capture(flags ${CMAKE_COMMAND} -E env "PKG_CONFIG_PATH=${pc_dir}" ${PKG_CONFIG} --cflags --libs tandem)
capture(libdir ${CMAKE_COMMAND} -E env "PKG_CONFIG_PATH=${pc_dir}" ${PKG_CONFIG} --variable=libdir tandem)
run(${CXX} -std=c++20 -o "${WORK}/consumer" "${SOURCE}/consumer.cc" ${flags} "-Wl,-rpath,${libdir}")
run(${CC} -o "${WORK}/c_consumer" "${SOURCE}/c_consumer.c" ${flags} "-Wl,-rpath,${libdir}")
run("${WORK}/consumer")
run("${WORK}/c_consumer")

# The loader finds libtandem.so beside the programs, without LD_LIBRARY_PATH.
foreach(program tandem-tune-rank tandem-train-digits)
  run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH "${WORK}/moved/bin/${program}" --help)
endforeach()
