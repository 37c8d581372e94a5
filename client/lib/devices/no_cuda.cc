// In the place of cuda/: a library that was built without the CUDA headers.
#include "client/lib/base/capture_holds.h"
#include "client/lib/base/client_device.h"

namespace tandem::client {
namespace {

Status NotBuilt() {
  return Unimplemented(
      "this build of libtandem has no CUDA: build it with -DTANDEM_CUDA=ON, or run tandemd with "
      "--backend host");
}

}  // namespace

Result<std::shared_ptr<ClientDevice>> MakeCudaClientDevice() { return NotBuilt(); }
Result<std::string> CudaDeviceUuid(int) { return NotBuilt(); }
Result<uint64_t> CudaCaptureId(void*) { return NotBuilt(); }
bool HasCudaProducts() { return false; }

}  // namespace tandem::client
