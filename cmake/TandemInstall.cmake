# What `cmake --install` puts where: libraries, headers, programs, and the packages that find_package(Tandem) and
# `pkg-config tandem` find. Clients link the target Tandem::tandem, and those of the C headers alone Tandem::c.
include(GNUInstallDirs)
set(CMAKE_INSTALL_DOCDIR "${CMAKE_INSTALL_DATAROOTDIR}/doc/tandem")
include(CMakePackageConfigHelpers)

target_include_directories(tandem INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
# The library asks for no C++ standard: a C++ program may use the C headers with its own.
set_target_properties(tandem PROPERTIES EXPORT_NAME c)
add_library(tandem_cxx INTERFACE)
target_link_libraries(tandem_cxx INTERFACE tandem)
target_compile_features(tandem_cxx INTERFACE cxx_std_20)
set_target_properties(tandem_cxx PROPERTIES EXPORT_NAME tandem)

# The gRPC plugin lies beside libtandem.so, where it is looked for.
install(TARGETS tandem tandem_cxx EXPORT TandemTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT client
  NAMELINK_COMPONENT client_dev)
if(TANDEM_BUNDLE_GRPC)
  include(TandemBundle)
else()
  install(TARGETS tandem_grpc_plugin LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT client)
endif()
install(DIRECTORY "${CMAKE_SOURCE_DIR}/client/include/tandem" "${CMAKE_SOURCE_DIR}/common/include/tandem"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT client_dev FILES_MATCHING PATTERN "*.h")
install(TARGETS tandemd tandemctl RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT daemon)
# tandemd looks for its engine beside itself and then here; nobody else starts one. The link names the version that runs.
set(TANDEM_LIBEXECDIR "${CMAKE_INSTALL_LIBEXECDIR}/tandem")
install(TARGETS tandem-engine RUNTIME DESTINATION "${TANDEM_LIBEXECDIR}/${PROJECT_VERSION}" COMPONENT daemon)
set(TANDEM_PACKAGE_FILES "${CMAKE_BINARY_DIR}/CMakeFiles/package")
file(MAKE_DIRECTORY "${TANDEM_PACKAGE_FILES}")
file(CREATE_LINK "${PROJECT_VERSION}/tandem-engine" "${TANDEM_PACKAGE_FILES}/tandem-engine" SYMBOLIC)
install(FILES "${TANDEM_PACKAGE_FILES}/tandem-engine" DESTINATION "${TANDEM_LIBEXECDIR}" COMPONENT daemon)
set(directories tuning monitoring kubernetes slurm cdi)
if(NOT TANDEM_SYSTEM_FILES)  # else they go to the system's own places
  list(APPEND directories systemd config)
endif()
foreach(directory IN LISTS directories)
  install(DIRECTORY "${CMAKE_SOURCE_DIR}/deploy/${directory}" DESTINATION "${CMAKE_INSTALL_DATADIR}/tandem"
    USE_SOURCE_PERMISSIONS COMPONENT daemon)
endforeach()
# The units name operations.md as their documentation.
install(DIRECTORY "${CMAKE_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT daemon
  FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
if(TARGET tandem-tune-rank)  # a client of tandemctl's
  install(TARGETS tandem-tune-rank RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT client)
endif()
if(TARGET tandem-train-digits)
  install(TARGETS tandem-train-digits RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT client)
  install(FILES "${CMAKE_SOURCE_DIR}/examples/train_digits/data/digits.csv"
    "${CMAKE_SOURCE_DIR}/examples/train_digits/data/LICENCE-digits.md"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/tandem" COMPONENT client)
endif()

# Programs that link libtandem.so find it in the prefix that they are installed to, wherever that is. Packages install to the
# loader's own directories, where a run path is an error.
if(TANDEM_SYSTEM_FILES)
  set(TANDEM_INSTALL_RPATH "")
elseif(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(TANDEM_INSTALL_RPATH "${CMAKE_INSTALL_LIBDIR}")
else()
  file(RELATIVE_PATH TANDEM_INSTALL_RPATH "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  string(PREPEND TANDEM_INSTALL_RPATH "$ORIGIN/")
endif()
foreach(program tandem-tune-rank tandem-train-digits)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "${TANDEM_INSTALL_RPATH}")
  endif()
endforeach()

# The files are made where find_package does not look: it searches the parents of PATH's bin directories, and a build tree's
# bin would give it a package without targets.
set(TANDEM_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/Tandem")
file(REMOVE "${CMAKE_BINARY_DIR}/TandemConfig.cmake" "${CMAKE_BINARY_DIR}/TandemConfigVersion.cmake")  # of earlier versions
install(EXPORT TandemTargets NAMESPACE Tandem:: DESTINATION "${TANDEM_PACKAGE_DIR}" COMPONENT client_dev)
configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/TandemConfig.cmake.in"
  "${TANDEM_PACKAGE_FILES}/TandemConfig.cmake" INSTALL_DESTINATION "${TANDEM_PACKAGE_DIR}")
write_basic_package_version_file("${TANDEM_PACKAGE_FILES}/TandemConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${TANDEM_PACKAGE_FILES}/TandemConfig.cmake" "${TANDEM_PACKAGE_FILES}/TandemConfigVersion.cmake"
  DESTINATION "${TANDEM_PACKAGE_DIR}" COMPONENT client_dev)
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH TANDEM_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" TANDEM_PC_PREFIX "${TANDEM_PC_PREFIX}")
  set(TANDEM_PC_RPATH "")
  if(NOT TANDEM_SYSTEM_FILES)  # where the loader does not look by itself
    set(TANDEM_PC_RPATH "-Wl,-rpath,\${libdir} ")
  endif()
  configure_file("${CMAKE_SOURCE_DIR}/cmake/tandem.pc.in" "${TANDEM_PACKAGE_FILES}/tandem.pc" @ONLY)
  install(FILES "${TANDEM_PACKAGE_FILES}/tandem.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT client_dev)
endif()

# All that compiling and running a client needs, by one command: --component sdk.
install(CODE "foreach(part client client_dev)
  execute_process(COMMAND \"${CMAKE_COMMAND}\" --install \"${CMAKE_BINARY_DIR}\" --prefix \"\${CMAKE_INSTALL_PREFIX}\"
    --component \${part} COMMAND_ERROR_IS_FATAL ANY)
endforeach()" COMPONENT sdk EXCLUDE_FROM_ALL)
