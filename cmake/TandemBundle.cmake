# TANDEM_BUNDLE_GRPC: the gRPC plugin is installed with the libraries that it needs, under names of their own
# (client/bundle), and with notices that name them. Included by TandemInstall.
find_program(TANDEM_PATCHELF patchelf)
if(NOT TANDEM_PATCHELF)
  message(FATAL_ERROR "TANDEM_BUNDLE_GRPC needs patchelf (apt-get install patchelf, dnf install patchelf)")
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND "${Python3_EXECUTABLE}" -c "import elftools" RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
if(failed)
  message(FATAL_ERROR "TANDEM_BUNDLE_GRPC needs pyelftools for ${Python3_EXECUTABLE} "
    "(apt-get install python3-pyelftools, dnf install python3-pyelftools)")
endif()

set(TANDEM_BUNDLE "${CMAKE_BINARY_DIR}/bundle")
set(strip)
if(TANDEM_SYSTEM_FILES)  # packages have no symbols for debuggers
  set(strip --strip)
endif()
set(scripts "${CMAKE_SOURCE_DIR}/client/bundle")
add_custom_command(OUTPUT "${TANDEM_BUNDLE}/bundled.json"
  COMMAND Python3::Interpreter -B "${scripts}/bundle_libraries.py" ${strip} "$<TARGET_FILE:tandem_grpc_plugin>" "${TANDEM_BUNDLE}"
  DEPENDS tandem_grpc_plugin "${scripts}/bundle_libraries.py" "${scripts}/unique_symbols.py"
  COMMENT "Bundling the libraries of the gRPC plugin" VERBATIM)
add_custom_target(tandem_bundle ALL DEPENDS "${TANDEM_BUNDLE}/bundled.json")

# As CMake installs libraries: rpmbuild looks into executable ones only, and Debian has none of those.
set(mode OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
if(NOT CMAKE_INSTALL_SO_NO_EXE)
  list(APPEND mode OWNER_EXECUTE GROUP_EXECUTE WORLD_EXECUTE)
endif()
install(FILES "${TANDEM_BUNDLE}/libtandem_grpc.so" DESTINATION "${CMAKE_INSTALL_LIBDIR}" PERMISSIONS ${mode} COMPONENT client)
install(DIRECTORY "${TANDEM_BUNDLE}/tandem/" DESTINATION "${CMAKE_INSTALL_LIBDIR}/tandem" FILE_PERMISSIONS ${mode}
  COMPONENT client FILES_MATCHING PATTERN "*.so*")

set(notices "${CMAKE_BINARY_DIR}/bundle_notices")
set(scripts "${CMAKE_SOURCE_DIR}/deploy")
add_custom_command(OUTPUT "${notices}/copyright" "${notices}/NOTICE"
  COMMAND Python3::Interpreter -B "${scripts}/notices.py" --bundled "${TANDEM_BUNDLE}/bundled.json"
          --copyright "${scripts}/debian/copyright" --notice "${CMAKE_SOURCE_DIR}/NOTICE" --output "${notices}"
  DEPENDS "${TANDEM_BUNDLE}/bundled.json" "${scripts}/notices.py" "${scripts}/licences.py" "${scripts}/sbom.py"
          "${scripts}/debian/copyright" "${CMAKE_SOURCE_DIR}/NOTICE"
  COMMENT "Writing the notices of the bundled libraries" VERBATIM)
add_custom_target(tandem_bundle_notices ALL DEPENDS "${notices}/copyright" "${notices}/NOTICE")
add_dependencies(tandem_bundle_notices tandem_bundle)
install(FILES "${notices}/copyright" "${notices}/NOTICE" DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/tandem-client"
  COMPONENT client)
install(DIRECTORY "${notices}/bundled" DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/tandem-client" COMPONENT client)
