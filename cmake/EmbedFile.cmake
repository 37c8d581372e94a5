# Writes C++ that has a file's bytes: cmake -DINPUT=FILE -DOUTPUT=FILE.cc -DHEADER=INCLUDE -DNAME=tandem::daemon::kName -P EmbedFile.cmake
# HEADER declares `extern const std::string_view kName;` in the name's namespace.
file(READ "${INPUT}" bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
string(REGEX MATCH "[^:]+$" name "${NAME}")
string(REGEX REPLACE "::[^:]+$" "" namespace "${NAME}")
get_filename_component(file "${INPUT}" NAME)
file(WRITE "${OUTPUT}" "// Made from ${file}.
#include \"${HEADER}\"

namespace ${namespace} {
namespace {
constexpr char kBytesOf${name}[] = {${bytes}};
}  // namespace
constexpr std::string_view ${name}{kBytesOf${name}, sizeof kBytesOf${name}};
}  // namespace ${namespace}
")
