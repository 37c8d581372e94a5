#include "client/nccl/nccl_places.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

namespace tandem::nccl {
namespace {

constexpr std::string_view kFile = "libnccl.so.2";

int AddLoaded(dl_phdr_info* info, size_t, void* paths) {
  if (info->dlpi_name != nullptr && info->dlpi_name[0] == '/')
    static_cast<std::vector<std::string>*>(paths)->emplace_back(info->dlpi_name);
  return 0;
}

std::vector<std::string> LoadedPaths() {
  std::vector<std::string> paths;
  ::dl_iterate_phdr(AddLoaded, &paths);
  return paths;
}

void AddFromLibraryPath(std::vector<std::string>* places) {
  const char* given = std::getenv("LD_LIBRARY_PATH");
  std::string_view rest = given == nullptr ? "" : given;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) places->push_back(std::string(rest.substr(0, end)) + "/" + std::string(kFile));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

bool IsOther(const std::string& path, const std::string& own) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  return !std::filesystem::equivalent(path, own, error);
}

}  // namespace

std::vector<std::string> PathsInCache(const std::string& bytes) {
  const std::string ending = "/" + std::string(kFile) + std::string(1, '\0');
  std::vector<std::string> paths;
  for (size_t at = bytes.find(ending); at != std::string::npos; at = bytes.find(ending, at + 1)) {
    const size_t before = at == 0 ? std::string::npos : bytes.rfind('\0', at - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    paths.push_back(bytes.substr(begin, at + ending.size() - 1 - begin));
  }
  return paths;
}

std::string WheelsPath(const std::string& loaded) {
  for (const char* folder : {"/site-packages/", "/dist-packages/"}) {
    const size_t at = loaded.find(folder);
    if (at == std::string::npos) continue;
    return loaded.substr(0, at) + folder + "nvidia/nccl/lib/" + std::string(kFile);
  }
  return {};
}

std::vector<std::string> NcclPlaces(const std::string& own) {
  std::vector<std::string> places;
  if (const char* given = std::getenv("TANDEM_NCCL_LIBRARY"); given != nullptr && *given != '\0')
    return {given};
  const std::vector<std::string> loaded = LoadedPaths();
  for (const std::string& path : loaded) {
    if (path.ends_with("/" + std::string(kFile))) places.push_back(path);
  }
  AddFromLibraryPath(&places);
  for (const std::string& path : loaded) places.push_back(WheelsPath(path));
  std::ifstream cache("/etc/ld.so.cache", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(cache)), std::istreambuf_iterator<char>());
  for (std::string& path : PathsInCache(bytes)) places.push_back(std::move(path));
  std::erase_if(places, [&](const std::string& path) { return !IsOther(path, own); });
  return places;
}

std::string OwnPath() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&OwnPath), &info) == 0 || info.dli_fname == nullptr) return {};
  return info.dli_fname;
}

}  // namespace tandem::nccl
