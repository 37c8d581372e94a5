# Writes OUT from IN with the commit of SOURCE; OUT is touched only when the commit has changed.
# cmake -DGIT=… -DSOURCE=… -DCOMMIT=… -DVERSION=… -DIN=… -DOUT=… -P Commit.cmake
# COMMIT, if it is set, goes before git: for sources without a repository, such as an archive's.
set(TANDEM_BUILD_VERSION "${VERSION}")
if(NOT COMMIT AND GIT AND EXISTS "${SOURCE}/.git")
  execute_process(COMMAND "${GIT}" -C "${SOURCE}" describe --always --abbrev=12 --exclude=* --dirty=.dirty
    OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(COMMIT)
  string(APPEND TANDEM_BUILD_VERSION "+${COMMIT}")
endif()
configure_file("${IN}" "${OUT}" @ONLY)
