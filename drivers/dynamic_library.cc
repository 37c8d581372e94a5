#include "drivers/dynamic_library.h"

#include <dlfcn.h>

namespace tandem::cuda {

Result<DynamicLibrary> DynamicLibrary::Open(const std::vector<std::string>& names) {
  std::string errors;
  for (const std::string& name : names) {
    DynamicLibrary library;
    library.handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ != nullptr) {
      library.name_ = name;
      return library;
    }
    const char* error = ::dlerror();
    errors += (errors.empty() ? "" : "; ") + std::string(error != nullptr ? error : name.c_str());
  }
  return Unavailable("cannot load a library: " + errors);
}

Result<void*> DynamicLibrary::FindAddress(const char* symbol) const {
  void* address = ::dlsym(handle_, symbol);
  if (address == nullptr) return Unimplemented(name_ + " has no " + symbol);
  return address;
}

}  // namespace tandem::cuda
