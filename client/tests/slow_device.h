// File: slow_device.h
//
// `SlowDevice`: the host backend's device, with addresses that can be registered as on a GPU. Looks at such a
// registration can be held up, and pinning words can fail.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "client/lib/base/client_device.h"

namespace tandem::client {

class SlowDevice final : public ClientDevice {
 public:
  Result<LaunchStream*> Open(StreamRef stream, const std::string& gpu_uuid,
                             LaunchStreamStorage* storage) override {
    return host_->Open(stream, gpu_uuid, storage);
  }
  Result<std::shared_ptr<void>> PinWords(const std::string& gpu_uuid, std::byte* data,
                                         size_t bytes) override {
    TANDEM_RETURN_IF_ERROR(pin_error);
    return host_->PinWords(gpu_uuid, data, bytes);
  }
  Result<std::shared_ptr<DeviceMapping>> Map(const std::string& gpu_uuid, int fd, size_t bytes) override {
    return host_->Map(gpu_uuid, fd, bytes);
  }
  Result<std::shared_ptr<DeviceMapping>> MapForeign(const std::string& gpu_uuid, int fd,
                                                    size_t bytes) override {
    return host_->MapForeign(gpu_uuid, fd, bytes);
  }
  Result<UniqueFd> Allocate(const std::string& gpu_uuid, size_t bytes, size_t* allocated) override {
    return host_->Allocate(gpu_uuid, bytes, allocated);
  }
  Result<bool> Exchange32(const std::string& gpu_uuid, uint32_t* word, uint32_t from, uint32_t to,
                          Clock::time_point deadline) override {
    return host_->Exchange32(gpu_uuid, word, from, to, deadline);
  }
  Status CopyNow(const std::string& gpu_uuid, void* to, const void* from, size_t bytes) override {
    return host_->CopyNow(gpu_uuid, to, from, bytes);
  }
  Result<ForeignRange> Describe(const void* address, size_t bytes) override {
    ForeignRange range;
    range.gpu_uuid = "GPU-0";
    range.by_ipc = true;
    range.pieces.push_back({reinterpret_cast<uintptr_t>(address), bytes, 1});
    return range;
  }
  Result<ExportedRange> Export(const ForeignRange&) override {
    return ExportedRange{.ipc_handle = "handle", .fds = {}, .chunk_bytes = {}};
  }
  Result<bool> Holds(const ForeignRange& range, uintptr_t address, size_t bytes) override {
    if (slow) {
      looking = true;
      looking.notify_all();
      slow.wait(true);
    }
    return address >= range.base() && address + bytes <= range.base() + range.bytes();
  }
  Result<bool> Vanished(const ForeignRange&) override { return false; }

  std::atomic<bool> slow{false}, looking{false};  // looks wait until `slow` is false again; one does
  Status pin_error;                               // of pinning words; by the thread that uses the device

 private:
  const std::shared_ptr<ClientDevice> host_ = MakeHostClientDevice();
};

}  // namespace tandem::client
