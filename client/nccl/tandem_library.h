// File: tandem_library.h
//
// `TandemLibrary`: the C API of libtandem.so, which lies beside this library. It is loaded with the first
// communicator, so that a process without one, as a shell under LD_PRELOAD, does not pay for it.
#pragma once

#include <memory>

#include "tandem/status.h"
#include "tandem/tandem.h"

namespace tandem::nccl {

// clang-format off
#define TANDEM_NCCL_CLIENT_CALLS(X) \
  X(tandem_status_code) X(tandem_status_message) X(tandem_status_reason) X(tandem_status_who) \
  X(tandem_status_free) \
  X(tandem_connect) X(tandem_client_backend) X(tandem_client_gpu_count) X(tandem_client_gpu_uuid) \
  X(tandem_client_detach) X(tandem_client_free) X(tandem_cuda_device_uuid) \
  X(tandem_join_options_init) X(tandem_join_group) X(tandem_group_leave) X(tandem_group_free) X(tandem_group_suspend) X(tandem_group_resume) \
  X(tandem_collective_init) X(tandem_collective_prepare) X(tandem_collective_launch) X(tandem_collectives_query) \
  X(tandem_stream_synchronize) \
  X(tandem_capture_hold_begin) X(tandem_capture_hold_free) \
  X(tandem_cancellation_create) X(tandem_cancellation_free) X(tandem_cancellation_use) \
  X(tandem_cancellation_cancel)
// clang-format on

struct TandemLibrary {
#define TANDEM_MEMBER(name) decltype(&::name) name = nullptr;
  TANDEM_NCCL_CLIENT_CALLS(TANDEM_MEMBER)
#undef TANDEM_MEMBER

  // Takes a status of the C API over.
  Status Take(tandem_status* status) const;
};

// UNAVAILABLE with the loader's words where libtandem.so cannot be loaded. Thread-safe; never unloaded.
Result<const TandemLibrary*> LoadTandem();

// Frees a handle of the C API by the member `free` of the library. The library has been loaded by then.
template <typename Handle, auto free>
struct Free {
  void operator()(Handle* handle) const {
    if (const auto library = LoadTandem(); library.ok()) ((*library)->*free)(handle);
  }
};
template <typename Handle, auto free>
using Owned = std::unique_ptr<Handle, Free<Handle, free>>;
using OwnedClient = Owned<tandem_client, &TandemLibrary::tandem_client_free>;
using OwnedGroup = Owned<tandem_group, &TandemLibrary::tandem_group_free>;
using OwnedHold = Owned<tandem_capture_hold, &TandemLibrary::tandem_capture_hold_free>;
using OwnedCancellation = Owned<tandem_cancellation, &TandemLibrary::tandem_cancellation_free>;

}  // namespace tandem::nccl
