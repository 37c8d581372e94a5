# Man pages and shell completion, made from the programs' own option tables: the target `manuals`.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_FOUND OR CMAKE_CROSSCOMPILING)  # the programs must run here
  if(TANDEM_SYSTEM_FILES)
    message(FATAL_ERROR "TANDEM_SYSTEM_FILES needs python3 and programs that run on this machine, for the man pages")
  endif()
  return()
endif()

set(TANDEM_MANUALS "${CMAKE_BINARY_DIR}/manuals")
set(TANDEM_MAN_PAGES tandemd.8 tandem-engine.8 tandemctl.1 tandemd.toml.5)
file(GLOB templates CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/deploy/man/*.in")
list(TRANSFORM TANDEM_MAN_PAGES PREPEND "${TANDEM_MANUALS}/" OUTPUT_VARIABLE pages)
add_custom_command(OUTPUT ${pages}
  COMMAND Python3::Interpreter -B "${CMAKE_SOURCE_DIR}/deploy/man/make_pages.py" --version "${PROJECT_VERSION}"
    --tandemd "$<TARGET_FILE:tandemd>" --engine "$<TARGET_FILE:tandem-engine>" --tandemctl "$<TARGET_FILE:tandemctl>"
    "${TANDEM_MANUALS}"
  DEPENDS tandemd tandem-engine tandemctl "${CMAKE_SOURCE_DIR}/deploy/man/make_pages.py" ${templates}
  COMMENT "Making the man pages" VERBATIM)

set(completions)
foreach(shell bash zsh fish)
  set(script "${TANDEM_MANUALS}/completion.${shell}")
  add_custom_command(OUTPUT "${script}"
    COMMAND tandemctl completion ${shell} > "${script}" DEPENDS tandemctl COMMENT "Making ${shell}'s completion" VERBATIM)
  list(APPEND completions "${script}")
endforeach()
add_custom_target(manuals DEPENDS ${pages} ${completions})

if(TANDEM_SYSTEM_FILES)
  # Compressed without time and name, so that a package is the same each time.
  find_program(TANDEM_GZIP gzip REQUIRED)
  foreach(page IN LISTS TANDEM_MAN_PAGES)
    string(REGEX MATCH "[0-9]$" section "${page}")
    set(made "${TANDEM_MANUALS}/${page}.gz")
    add_custom_command(OUTPUT "${made}" COMMAND "${TANDEM_GZIP}" -9nkf "${TANDEM_MANUALS}/${page}"
      DEPENDS "${TANDEM_MANUALS}/${page}" VERBATIM)
    list(APPEND compressed "${made}")
    install(FILES "${made}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}" COMPONENT daemon)
  endforeach()
  add_custom_target(compressed_manuals DEPENDS ${compressed})
  add_dependencies(manuals compressed_manuals)
  install(FILES "${TANDEM_MANUALS}/completion.bash" RENAME tandemctl
    DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT daemon)
  install(FILES "${TANDEM_MANUALS}/completion.zsh" RENAME _tandemctl
    DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions" COMPONENT daemon)
  install(FILES "${TANDEM_MANUALS}/completion.fish" RENAME tandemctl.fish
    DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" COMPONENT daemon)
endif()
