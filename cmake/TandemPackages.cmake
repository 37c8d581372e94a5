# DEB and RPM packages by CPack: tandem-daemon, tandem-client, tandem-client-dev. deploy/package builds them.

# All that the install rules install; a build for packages makes nothing else.
add_custom_target(packaged DEPENDS tandemd tandem-engine tandemctl tandem tandem-tune-rank tandem-train-digits)
if(TARGET manuals)
  add_dependencies(packaged manuals)
endif()
if(TARGET tandem_bundle)
  add_dependencies(packaged tandem_bundle tandem_bundle_notices)
endif()
if(NOT TANDEM_SYSTEM_FILES)
  return()
endif()

set(TANDEM_PACKAGE_RELEASE 1 CACHE STRING "The packages' revision of this version")
set(TANDEM_PACKAGE_CONTACT "Tandem maintainers <maintainers@tandem.example>" CACHE STRING
  "The packages' maintainer, as name and address")

# The system's own places: absolute where the prefix has no say.
install(DIRECTORY "${CMAKE_SOURCE_DIR}/deploy/systemd/" DESTINATION /usr/lib/systemd/system COMPONENT daemon
  FILES_MATCHING PATTERN "*.service" PATTERN "*.socket")
install(FILES "${CMAKE_SOURCE_DIR}/deploy/systemd/tandem.sysusers.conf" RENAME tandem.conf
  DESTINATION /usr/lib/sysusers.d COMPONENT daemon)
install(FILES "${CMAKE_SOURCE_DIR}/deploy/systemd/tandem.tmpfiles.conf" RENAME tandem.conf
  DESTINATION /usr/lib/tmpfiles.d COMPONENT daemon)
install(FILES "${CMAKE_SOURCE_DIR}/deploy/config/tandemd.toml" DESTINATION /etc/tandem COMPONENT daemon)
install(DIRECTORY DESTINATION /etc/tandem/config.d COMPONENT daemon)
install(FILES "${CMAKE_SOURCE_DIR}/deploy/config/needrestart.conf" RENAME tandem-daemon.conf
  DESTINATION /etc/needrestart/conf.d COMPONENT daemon)

# Each package's own documents: the licence with what it covers, the notice, the changes.
string(TIMESTAMP TANDEM_PACKAGE_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)  # SOURCE_DATE_EPOCH, if it is set
set(TANDEM_PACKAGE_DOCS "${CMAKE_BINARY_DIR}/CMakeFiles/package/docs")
find_program(TANDEM_GZIP gzip REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
foreach(part daemon client client-dev)
  set(TANDEM_PACKAGE_NAME "tandem-${part}")
  set(folder "${TANDEM_PACKAGE_DOCS}/${TANDEM_PACKAGE_NAME}")
  configure_file("${CMAKE_SOURCE_DIR}/deploy/debian/changelog.in" "${folder}/changelog.Debian" @ONLY)
  configure_file("${CMAKE_SOURCE_DIR}/CHANGELOG.md" "${folder}/changelog" COPYONLY)
  execute_process(COMMAND "${TANDEM_GZIP}" -9nf "${folder}/changelog.Debian" "${folder}/changelog"
    COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "-" "_" component "${part}")
  set(notices "${CMAKE_SOURCE_DIR}/deploy/debian/copyright" "${CMAKE_SOURCE_DIR}/NOTICE")
  if(part STREQUAL client AND TARGET tandem_bundle)
    set(notices)  # TandemBundle installs its own
  endif()
  install(FILES ${notices} "${folder}/changelog.Debian.gz" "${folder}/changelog.gz"
    DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/${TANDEM_PACKAGE_NAME}" COMPONENT ${component})
  if(EXISTS "${CMAKE_SOURCE_DIR}/deploy/debian/${TANDEM_PACKAGE_NAME}.overrides")
    install(FILES "${CMAKE_SOURCE_DIR}/deploy/debian/${TANDEM_PACKAGE_NAME}.overrides" RENAME ${TANDEM_PACKAGE_NAME}
      DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/lintian/overrides" COMPONENT ${component})
  endif()
endforeach()

# Each package's bill of materials (SPDX), from the programs as they have been built.
function(tandem_sbom package component)
  set(file "${CMAKE_BINARY_DIR}/${package}.spdx.json")
  set(programs)
  set(targets)
  set(depends "${CMAKE_SOURCE_DIR}/deploy/sbom.py" "${CMAKE_SOURCE_DIR}/deploy/licences.py")
  foreach(target IN LISTS ARGN)
    if(target STREQUAL tandem_grpc_plugin AND TARGET tandem_bundle)
      list(APPEND programs "${TANDEM_BUNDLE}/libtandem_grpc.so")
      list(APPEND targets --bundled "${TANDEM_BUNDLE}/bundled.json")
      list(APPEND depends "${TANDEM_BUNDLE}/bundled.json")
    else()
      list(APPEND programs "$<TARGET_FILE:${target}>")
    endif()
    list(APPEND targets --target ${target})
  endforeach()
  add_custom_command(OUTPUT "${file}"
    COMMAND Python3::Interpreter -B "${CMAKE_SOURCE_DIR}/deploy/sbom.py" --name ${package} --version "${PROJECT_VERSION}"
            --build "${CMAKE_BINARY_DIR}" --output "${file}" ${targets} ${programs}
    DEPENDS ${ARGN} ${depends} COMMENT "Listing the materials of ${package}" VERBATIM)
  add_custom_target(${component}_sbom DEPENDS "${file}")
  add_dependencies(packaged ${component}_sbom)
  if(TARGET tandem_bundle)
    add_dependencies(${component}_sbom tandem_bundle)
  endif()
  install(FILES "${file}" DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/${package}" COMPONENT ${component})
endfunction()
tandem_sbom(tandem-daemon daemon tandemd tandem-engine tandemctl)
tandem_sbom(tandem-client client tandem tandem_grpc_plugin tandem-tune-rank tandem-train-digits)

string(TIMESTAMP TANDEM_RPM_DATE "%a %b %d %Y" UTC)
configure_file("${CMAKE_SOURCE_DIR}/deploy/rpm/changelog.in" "${TANDEM_PACKAGE_DOCS}/rpm-changelog" @ONLY)

set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_CONTACT "${TANDEM_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_VENDOR "Tandem maintainers")
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "collectives and matmuls in tandem on the GPUs of one node")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_SET_DESTDIR ON)  # for the absolute destinations above
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL daemon client client_dev)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENT_DAEMON_DESCRIPTION
"Daemon of Tandem. tandemd owns the symmetric memory and the launch queue of a
node's GPUs, and keeps one engine process for each GPU. Training jobs attach
to it through the client library. The package also has tandemctl, the
operators' program.

Without a GPU tandemd emulates GPUs on the CPU.")
set(CPACK_COMPONENT_CLIENT_DESCRIPTION
"Client library of Tandem. Jobs register tensors and submit fused collectives
and matmuls through this library to the node's tandemd. The package also has
the ranks of tandemctl's tuning and an example that trains a small model.")
set(CPACK_COMPONENT_CLIENT_DEV_DESCRIPTION
"Headers in C and C++, the CMake package and the pkg-config file of Tandem's
client library.")

# The plugin lies in the loader's directory, where each library must have a name of its own.
target_link_options(tandem_grpc_plugin PRIVATE LINKER:-soname,libtandem_grpc.so)

set(scripts "${CMAKE_SOURCE_DIR}/deploy/debian")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE "${TANDEM_PACKAGE_RELEASE}")
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_RPM_SPEC_MORE_DEFINE "%define packager ${TANDEM_PACKAGE_CONTACT}\n")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_BINARY_DIR}/lib")
if(TARGET tandem_bundle)
  list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${TANDEM_BUNDLE}/tandem")
  # The copies are the package's own: it neither offers them to other packages nor asks others for them.
  string(APPEND CPACK_RPM_SPEC_MORE_DEFINE "%global __provides_exclude_from ^.*/tandem/.*\\.so.*$
%global __requires_exclude ^lib.*-[0-9a-f]{8}\\.so.*$\n")
endif()
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME tandem-daemon)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_DAEMON_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers")
set(CPACK_DEBIAN_DAEMON_PACKAGE_RECOMMENDS "tandem-client (= ${PROJECT_VERSION}-${TANDEM_PACKAGE_RELEASE})")
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA
  "${scripts}/conffiles;${scripts}/postinst;${scripts}/prerm;${scripts}/postrm")
set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME tandem-client)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION libs)
file(WRITE "${TANDEM_PACKAGE_DOCS}/shlibs"
  "libtandem 0 tandem-client (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_CLIENT_PACKAGE_CONTROL_EXTRA "${scripts}/triggers;${TANDEM_PACKAGE_DOCS}/shlibs")
set(CPACK_DEBIAN_CLIENT_PACKAGE_SUGGESTS tandem-daemon)
set(CPACK_DEBIAN_CLIENT_DEV_PACKAGE_NAME tandem-client-dev)
set(CPACK_DEBIAN_CLIENT_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_CLIENT_DEV_PACKAGE_DEPENDS "tandem-client (= ${PROJECT_VERSION}-${TANDEM_PACKAGE_RELEASE})")

set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_RELEASE "${TANDEM_PACKAGE_RELEASE}")
set(CPACK_RPM_PACKAGE_LICENSE Apache-2.0)
set(CPACK_RPM_PACKAGE_GROUP "System Environment/Daemons")
set(CPACK_RPM_PACKAGE_AUTOREQPROV ON)
set(CPACK_RPM_CHANGELOG_FILE "${TANDEM_PACKAGE_DOCS}/rpm-changelog")
set(scripts "${CMAKE_SOURCE_DIR}/deploy/rpm")
foreach(part daemon client client-dev)
  string(REPLACE "-" "_" component "${part}")
  string(TOUPPER "${component}" component)
  set(CPACK_RPM_${component}_PACKAGE_NAME "tandem-${part}")
endforeach()
set(CPACK_RPM_DAEMON_USER_FILELIST "%config(noreplace) /etc/tandem/tandemd.toml" "%dir /etc/tandem/config.d"
  "%config(noreplace) /etc/needrestart/conf.d/tandem-daemon.conf")
set(CPACK_RPM_DAEMON_PACKAGE_REQUIRES systemd)
set(CPACK_RPM_DAEMON_POST_INSTALL_SCRIPT_FILE "${scripts}/post")
set(CPACK_RPM_DAEMON_PRE_UNINSTALL_SCRIPT_FILE "${scripts}/preun")
set(CPACK_RPM_DAEMON_POST_UNINSTALL_SCRIPT_FILE "${scripts}/postun")
set(CPACK_RPM_CLIENT_POST_INSTALL_SCRIPT_FILE "${scripts}/ldconfig")
set(CPACK_RPM_CLIENT_POST_UNINSTALL_SCRIPT_FILE "${scripts}/ldconfig")
set(CPACK_RPM_CLIENT_DEV_PACKAGE_REQUIRES "tandem-client = ${PROJECT_VERSION}-${TANDEM_PACKAGE_RELEASE}")
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION /etc /usr/lib/systemd /usr/lib/systemd/system /usr/lib/sysusers.d
  /usr/lib/tmpfiles.d /usr/libexec /usr/share/man /usr/share/man/man1 /usr/share/man/man5 /usr/share/man/man8
  /usr/share/bash-completion /usr/share/bash-completion/completions /usr/share/zsh /usr/share/zsh/vendor-completions
  /usr/share/fish /usr/share/fish/vendor_completions.d /usr/share/lintian /usr/share/lintian/overrides
  /usr/${CMAKE_INSTALL_LIBDIR} /usr/${CMAKE_INSTALL_LIBDIR}/cmake /usr/${CMAKE_INSTALL_LIBDIR}/pkgconfig)
include(CPack)
