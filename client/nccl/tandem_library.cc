#include "client/nccl/tandem_library.h"

#include <dlfcn.h>

#include <string>

#include "client/nccl/nccl_places.h"

namespace tandem::nccl {
namespace {

Result<void*> OpenTandem() {
  const std::string own = OwnPath();
  const std::string folder = own.substr(0, own.rfind('/') + 1);
  std::string why;
  for (const std::string& path :
       {folder + "libtandem.so.0", folder + "libtandem.so", std::string("libtandem.so.0")}) {
    if (void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* error = ::dlerror();
    why += (why.empty() ? "" : "; ") + (error == nullptr ? path : std::string(error));
  }
  return Unavailable("libtandem.so cannot be loaded: " + why);
}

Result<const TandemLibrary*> Load() {
  TANDEM_ASSIGN_OR_RETURN(void* const library, OpenTandem());
  auto loaded = std::make_unique<TandemLibrary>();
#define TANDEM_FIND(name)                                                      \
  loaded->name = reinterpret_cast<decltype(&::name)>(::dlsym(library, #name)); \
  if (loaded->name == nullptr) return Unavailable("libtandem.so has no " #name);
  TANDEM_NCCL_CLIENT_CALLS(TANDEM_FIND)
#undef TANDEM_FIND
  return static_cast<const TandemLibrary*>(loaded.release());
}

}  // namespace

Status TandemLibrary::Take(tandem_status* status) const {
  if (status == nullptr) return Status::Ok();
  StatusDetail detail;
  detail.reason = tandem_status_reason(status);
  detail.who = tandem_status_who(status);
  Status taken(static_cast<Code>(tandem_status_code(status)), tandem_status_message(status),
               std::move(detail));
  tandem_status_free(status);
  return taken;
}

Result<const TandemLibrary*> LoadTandem() {
  static const auto* const library = new Result<const TandemLibrary*>(Load());
  return *library;
}

}  // namespace tandem::nccl
