#include "engine/backends/backends.h"

namespace tandem::engine {

void SetNcclEnvironment() {}

Result<std::unique_ptr<Backend>> MakeCudaEngineBackend(const BackendRequest&) {
  return Unimplemented("this engine was built without the CUDA backend");
}

}  // namespace tandem::engine
