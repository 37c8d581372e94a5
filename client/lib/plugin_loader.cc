#include "client/lib/plugin_loader.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "client/lib/base/log_hook.h"
#include "client/lib/needed_libraries.h"

namespace tandem::client {
namespace {

std::string ControlPath() {
  if (const char* path = std::getenv("TANDEM_GRPC_LIBRARY"); path != nullptr && *path != '\0') return path;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&MakeControl), &info) != 0 && info.dli_fname != nullptr) {
    std::string path = info.dli_fname;
    size_t slash = path.rfind('/');
    if (slash != std::string::npos) return path.substr(0, slash + 1) + "libtandem_grpc.so";
  }
  return "libtandem_grpc.so";
}

// True if the process has loaded the libraries that the gRPC plugin is linked to. Both then share one copy,
// in every symbol. Under DEEPBIND the plugin would take variables from the library that the program has moved
// to itself (copy relocations), and find them uninitialised. In every other case the plugin's gRPC and
// protobuf come before the ones that the process may export: in Tandem's wheel they are copies with names of
// their own.
bool SharesGrpc(const std::string& path) {
  Result<std::vector<std::string>> needed = NeededLibraries(path);
  if (!needed.ok()) return false;  // loading it says why
  for (const std::string& name : *needed) {
    if (!name.starts_with("libgrpc++") && !name.starts_with("libprotobuf")) continue;
    if (void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD); library != nullptr) {
      ::dlclose(library);
      return true;
    }
  }
  return false;
}

struct LoadedPlugin {
  TandemGrpcCreate create = nullptr;
  bool shares_grpc = false;  // with the program
};

// Loaded for the life of the process: gRPC does not bear being unloaded.
Result<LoadedPlugin> LoadControl() {
  static std::mutex mutex;
  static LoadedPlugin loaded;
  std::lock_guard lock(mutex);
  if (loaded.create != nullptr) return loaded;
  std::string path = ControlPath();
  const bool shares_grpc = SharesGrpc(path);
  int flags = RTLD_NOW | RTLD_LOCAL;
#ifndef TANDEM_SANITIZED  // the sanitizers' runtimes do not work under DEEPBIND
  if (!shares_grpc) flags |= RTLD_DEEPBIND;
#endif
  void* library = ::dlopen(path.c_str(), flags);
  if (library == nullptr) {
    const char* error = ::dlerror();
    const std::string why = error == nullptr ? path : error;
    // The loader has no code: these are its texts for the two limits.
    const bool full = why.find("Cannot allocate memory") != std::string::npos ||
                      why.find("failed to map segment") != std::string::npos ||
                      why.find("Too many open files") != std::string::npos;
    if (full)
      return ResourceExhausted("no room for Tandem's gRPC plugin: " + why)
          .WithDetail({.reason = "NO_MEMORY"});
    return FailedPrecondition("cannot load Tandem's gRPC plugin: " + why);
  }
  void* symbol = ::dlsym(library, "tandem_grpc_create");
  if (symbol == nullptr) return FailedPrecondition(path + " is not Tandem's gRPC plugin");
  loaded = {reinterpret_cast<TandemGrpcCreate>(symbol), shares_grpc};
  return loaded;
}

}  // namespace

Result<std::unique_ptr<ClientControl>> MakeControl() {
  TANDEM_ASSIGN_OR_RETURN(const LoadedPlugin plugin, LoadControl());
  PluginLog* const log = plugin.shares_grpc ? nullptr : &LogHook::Get().plugin();
  std::unique_ptr<ClientControl> control(plugin.create(kControlApiVersion, log));
  if (control == nullptr)
    return FailedPrecondition("libtandem_grpc.so is of another build than libtandem.so");
  LogHook::Get().TellPlugin();
  return control;
}

}  // namespace tandem::client
