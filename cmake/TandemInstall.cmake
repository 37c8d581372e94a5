# What `cmake --install` puts where: libraries, headers, programs, and the package that find_package(Tandem) finds.
include(GNUInstallDirs)
set(CMAKE_INSTALL_DOCDIR "${CMAKE_INSTALL_DATAROOTDIR}/doc/tandem")
include(CMakePackageConfigHelpers)

target_include_directories(tandem INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
set_target_properties(tandem PROPERTIES EXPORT_NAME tandem)
target_compile_features(tandem INTERFACE cxx_std_20)

# The gRPC plugin lies beside libtandem.so, where it is looked for.
install(TARGETS tandem EXPORT TandemTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT client)
install(TARGETS tandem_grpc_plugin LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT client)
install(DIRECTORY "${CMAKE_SOURCE_DIR}/client/include/tandem" "${CMAKE_SOURCE_DIR}/common/include/tandem"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT client FILES_MATCHING PATTERN "*.h")
foreach(program tandemd tandem-engine tandemctl)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT daemon)
  endif()
endforeach()
foreach(directory systemd config tuning)
  if(EXISTS "${CMAKE_SOURCE_DIR}/deploy/${directory}")
    install(DIRECTORY "${CMAKE_SOURCE_DIR}/deploy/${directory}" DESTINATION "${CMAKE_INSTALL_DATADIR}/tandem"
      COMPONENT daemon)
  endif()
endforeach()
# The units name operations.md as their documentation.
install(DIRECTORY "${CMAKE_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT daemon
  FILES_MATCHING PATTERN "*.md")
if(TARGET tandem-tune-rank)  # a client of tandemctl's
  install(TARGETS tandem-tune-rank RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT client)
endif()
if(TARGET tandem-train-digits)
  install(TARGETS tandem-train-digits RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT client)
  install(FILES "${CMAKE_SOURCE_DIR}/examples/train_digits/data/digits.csv"
    "${CMAKE_SOURCE_DIR}/examples/train_digits/data/LICENCE-digits.md"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/tandem" COMPONENT client)
endif()

set(TANDEM_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/Tandem")
install(EXPORT TandemTargets NAMESPACE Tandem:: DESTINATION "${TANDEM_PACKAGE_DIR}" COMPONENT client)
configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/TandemConfig.cmake.in"
  "${CMAKE_BINARY_DIR}/TandemConfig.cmake" INSTALL_DESTINATION "${TANDEM_PACKAGE_DIR}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/TandemConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/TandemConfig.cmake" "${CMAKE_BINARY_DIR}/TandemConfigVersion.cmake"
  DESTINATION "${TANDEM_PACKAGE_DIR}" COMPONENT client)
