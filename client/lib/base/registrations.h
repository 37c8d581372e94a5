// File: registrations.h
//
// Maps addresses of this process to the daemon's registrations: the session's memories by their addresses,
// and the user's own device memory, registered once and found again. The user's memory may vanish at any
// time, and other memory may take its address. So every look-up compares the ids of the memory's pieces,
// which the driver never reuses.
//
// Thread-safe. Look-ups for launches allocate nothing and take a shared lock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/lib/base/client_device.h"
#include "client/lib/base/control_api.h"
#include "client/lib/base/fork_guard.h"
#include "ipc/channel_layout.h"

namespace tandem::client {

// Registrations that have lost their last holder. The next thread that may call the daemon reports them.
struct EndedRegistrations {
  // In a forked child, where they are the parent's to end and another thread may have held a lock.
  bool InChild() const { return born != ForkCount(); }

  const uint64_t born = ForkCount();
  std::mutex mutex;
  std::vector<uint64_t> ids;
};

// One registration of the user's own device memory.
class ForeignRegistration {
 public:
  ForeignRegistration(std::shared_ptr<EndedRegistrations> ended, uint64_t id, ForeignRange range)
      : ended_(std::move(ended)), id_(id), range_(std::move(range)) {}
  ForeignRegistration(const ForeignRegistration&) = delete;
  ForeignRegistration& operator=(const ForeignRegistration&) = delete;
  ~ForeignRegistration() {
    if (ended_->InChild()) return;
    std::lock_guard lock(ended_->mutex);
    ended_->ids.push_back(id_);
  }

  uint64_t id() const { return id_; }
  const ForeignRange& range() const { return range_; }
  // OK while [address, address + bytes) is still the memory registered; FAILED_PRECONDITION else.
  Status Check(ClientDevice& device, uintptr_t address, size_t bytes) const;

 private:
  const std::shared_ptr<EndedRegistrations> ended_;
  const uint64_t id_;
  const ForeignRange range_;
};

// The registrations that one launch is bound to, held until the launch has ended: none may be revoked to make
// room for another. It has room for all, so the launch path allocates nothing.
class BoundRegistrations {
 public:
  void Add(std::shared_ptr<ForeignRegistration> registration) {
    if (count_ < held_.size()) held_[count_++] = std::move(registration);
  }
  void Take(BoundRegistrations* other) {
    Clear();
    for (size_t i = 0; i < other->count_; ++i) held_[i] = std::move(other->held_[i]);
    count_ = std::exchange(other->count_, 0);
  }
  void Clear() {
    while (count_ > 0) held_[--count_].reset();
  }

 private:
  size_t count_ = 0;
  std::array<std::shared_ptr<ForeignRegistration>, kMaxBindings> held_;  // one a slot
};

class Registrations {
 public:
  // Called before unused registrations are looked for: drops the registrations of launches that have ended.
  // Set once, first.
  void BeforeSweep(std::function<void()> reap) { reap_ = std::move(reap); }

  // Memories of the session's own, by address: `group_id` is that of a symmetric tensor, 0 for memory that
  // any group takes.
  void Add(const std::byte* data, size_t bytes, const std::string& gpu_uuid, uint64_t group_id,
           uint64_t registration_id, const std::string& group_name = {});
  // The memories that any group takes.
  struct Memory {
    std::byte* data = nullptr;
    size_t bytes = 0;
    uint64_t registration_id = 0;
  };
  std::vector<Memory> OwnMemories() const;
  // The name of another group than `group_id`, if the address lies in a symmetric tensor of that one.
  std::optional<std::string> OtherGroup(const std::byte* address, uint64_t group_id) const;
  // Does nothing in a forked child.
  void Remove(const std::byte* data, uint64_t registration_id);

  // A rank of this session is on `gpu_uuid`. Where several engines share a GPU, that is the name of one
  // engine's share: memory on the device is registered with the share of the rank that joined last, unless a
  // launch names another.
  void UseGpu(const std::string& gpu_uuid);

  // The registration that covers the user's own memory at `address`, made if there is none. `gpu_uuid`: of
  // the rank that wants it; empty: of any. FAILED_PRECONDITION, reason NO_SHARE, for a shared GPU before a
  // rank has joined on it.
  Result<std::shared_ptr<ForeignRegistration>> Foreign(ClientControl& control, ClientDevice& device,
                                                       const void* address, size_t bytes,
                                                       const std::string& gpu_uuid = {});
  // The daemon's GPUs, to know the shared ones. Set once, first.
  void SetGpus(const std::vector<GpuDescription>& gpus);

  // The memory to which an address binds a launch of `group_id` on `gpu_uuid`: a memory of the session, or
  // the user's own memory, which is added to `bound`.
  Result<LaunchBinding> Resolve(ClientControl& control, ClientDevice& device, uint64_t group_id,
                                const std::string& gpu_uuid, const void* address, size_t bytes,
                                BoundRegistrations* bound);

  // Lets go of registrations whose memory is gone; `unused` also of those that nobody else holds: no
  // handle, no launch. True if any went.
  bool Sweep(ClientDevice& device, bool unused = false);
  bool HasForeign() const;
  // Bytes of the user's own memory that is registered; pieces that registrations share count once.
  uint64_t ForeignBytes() const;
  // Tells the daemon of those that have ended.
  void Deregister(ClientControl& control);

 private:
  struct Own {
    size_t bytes = 0;
    std::string gpu_uuid;
    uint64_t group_id = 0, registration_id = 0;
    std::string group_name;
  };
  using ForeignMap = std::multimap<uintptr_t, std::shared_ptr<ForeignRegistration>>;

  // Finds one of any GPU's share if `gpu_uuid` is empty.
  std::shared_ptr<ForeignRegistration> Find(ClientDevice& device, uintptr_t address, size_t bytes,
                                            std::string_view gpu_uuid) const;
  // The name that the daemon has for the device, for a rank on `gpu_uuid` (empty: the last that joined).
  Result<std::string> GpuNameOf(const std::string& device_uuid, const std::string& gpu_uuid) const;

  std::function<void()> reap_;
  mutable std::shared_mutex mutex_;
  std::multimap<uintptr_t, Own> own_;                          // by first address
  ForeignMap foreign_;                                         // the same
  std::vector<std::string> gpus_;                              // the daemon's names
  std::map<std::string, std::string, std::less<>> used_gpus_;  // by device: the name where a rank joined last
  const std::shared_ptr<EndedRegistrations> ended_ = std::make_shared<EndedRegistrations>();
  std::mutex registering_mutex_;  // one registration at a time: two for the same memory would be waste
};

}  // namespace tandem::client
