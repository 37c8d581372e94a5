#include "tandem/c_dlpack.h"

#include <cstddef>
#include <cstdint>

namespace {

// dlpack.h's DLManagedTensor.
struct ManagedTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t dims;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
  void* manager_ctx;
  void (*deleter)(ManagedTensor*);
};
static_assert(offsetof(ManagedTensor, manager_ctx) == 48 && sizeof(ManagedTensor) == 64);

}  // namespace

extern "C" void tandem_dlpack_delete(void* managed) {
  if (managed == nullptr) return;
  // A copy: the object may own both structs.
  const tandem_dlpack_owner owner =
      *static_cast<const tandem_dlpack_owner*>(static_cast<ManagedTensor*>(managed)->manager_ctx);
  if (owner.is_running() == 0) return;
  const int entered = owner.enter();
  void *type = nullptr, *value = nullptr, *trace = nullptr;
  owner.set_aside(&type, &value, &trace);
  owner.release(owner.object);
  owner.bring_back(type, value, trace);
  owner.leave(entered);
}
