#include "client/nccl/real_nccl.h"

#include <dlfcn.h>

#include <string>

#include "client/nccl/messages.h"
#include "client/nccl/nccl_places.h"

namespace tandem::nccl {
namespace {

// NCCL calls its functions by their public names. RTLD_DEEPBIND makes it find itself, and not this library.
void* OpenNccl() {
  std::string tried;
  for (const std::string& path : NcclPlaces(OwnPath())) {
    if (void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)) return library;
    const char* why = ::dlerror();
    tried += "; " + (why == nullptr ? path : std::string(why));
  }
  SayOnce("libtandem-nccl.so finds no libnccl.so.2: set TANDEM_NCCL_LIBRARY to its path" + tried);
  return nullptr;
}

void* Library() {
  static void* const library = OpenNccl();
  return library;
}

}  // namespace

ncclResult_t Missing(const char* name) {
  SetLastError(Library() == nullptr ? std::string("there is no libnccl.so.2 for ") + name
                                    : std::string("the NCCL of this process has no ") + name);
  return ncclInvalidUsage;
}

void* FindInNccl(const char* name) { return Library() == nullptr ? nullptr : ::dlsym(Library(), name); }

const RealNccl& Real() {
  static const auto* const real = new RealNccl;
  return *real;
}

}  // namespace tandem::nccl
