// The host backend's half of the seam: streams are HostStreams, memory is memfds, words need nothing.
#include <sys/eventfd.h>

#include <atomic>
#include <cstring>

#include "client/lib/base/client_device.h"
#include "client/lib/client_launch/host/host_client_queue.h"
#include "common/shared_memory.h"
#include "tandem/host_stream.h"

namespace tandem::client {
namespace {

class HostLaunchStream final : public LaunchStream {
 public:
  explicit HostLaunchStream(HostStream* stream) : stream_(stream) {}

  Result<uint64_t> Id() override { return stream_->id(); }
  Result<bool> IsCapturing() override { return stream_->IsCapturing(); }
  Status Arrive(Word* request, Word* done, uint64_t value) override {
    TANDEM_RETURN_IF_ERROR(stream_->WriteWord(request, value));
    return stream_->WaitWord(done, value);
  }
  Status Await(Word* done, uint64_t value) override { return stream_->WaitWord(done, value); }
  Status ArriveCaptured(Word* doorbell, Word* done) override {
    TANDEM_RETURN_IF_ERROR(stream_->WriteWord(done, 0));
    TANDEM_RETURN_IF_ERROR(stream_->WriteWord(doorbell, 1));
    return stream_->WaitWord(done, 1);
  }
  Status RunInOrder(HostEvent& order, std::function<void()>&& kernel) override {
    TANDEM_RETURN_IF_ERROR(stream_->WaitExternal(order));
    TANDEM_RETURN_IF_ERROR(stream_->Enqueue(std::move(kernel)));
    return stream_->RecordExternal(order);
  }
  Status RetainInCapture(std::shared_ptr<void> object) override {
    return stream_->RetainInCapture(std::move(object));
  }
  Status Memset32(std::shared_ptr<void> keep, uint32_t* words, uint32_t value, size_t count) override {
    return stream_->Enqueue([keep = std::move(keep), words, value, count] {
      for (size_t i = 0; i < count; ++i)
        std::atomic_ref<uint32_t>(words[i]).store(value, std::memory_order_release);
    });
  }
  Status Write32(std::shared_ptr<void> keep, uint32_t* word, uint32_t value) override {
    return Memset32(std::move(keep), word, value, 1);
  }
  Status Copy(void* to, const void* from, size_t bytes) override {
    return stream_->Enqueue([to, from, bytes] { std::memmove(to, from, bytes); });
  }
  Status Notify(int event_fd) override {
    return stream_->Enqueue([event_fd] { (void)::eventfd_write(event_fd, 1); });
  }

 private:
  HostStream* const stream_;
};

class HostMapping final : public DeviceMapping {
 public:
  explicit HostMapping(Mapping mapping) : mapping_(std::move(mapping)) {}
  std::byte* data() const override { return mapping_.data(); }
  size_t bytes() const override { return mapping_.size(); }
  Status Unmap() override { return mapping_.Vacate(); }
  Status Remap(int fd) override {
    TANDEM_ASSIGN_OR_RETURN(const size_t size, FileSize(fd));
    if (size < bytes()) return Internal("the daemon sent a segment shorter than the one before");
    return mapping_.Refill(fd);
  }

 private:
  Mapping mapping_;
};

class HostClientDevice final : public ClientDevice {
 public:
  Result<LaunchStream*> Open(StreamRef stream, const std::string&, LaunchStreamStorage* storage) override {
    if (stream.is_cuda)
      return InvalidArgument("a CUDA stream, but the daemon's backend is host: pass a HostStream");
    if (stream.host == nullptr) return InvalidArgument("the stream is null");
    return storage->Emplace<HostLaunchStream>(stream.host);
  }
  Result<std::shared_ptr<void>> PinWords(const std::string&, std::byte*, size_t) override {
    return std::shared_ptr<void>();
  }
  Result<std::shared_ptr<DeviceMapping>> Map(const std::string&, int fd, size_t bytes) override {
    TANDEM_ASSIGN_OR_RETURN(size_t size, FileSize(fd));
    if (size < bytes) return Internal("the daemon sent a segment shorter than announced");
    TANDEM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd, 0, bytes, true));
    return std::shared_ptr<DeviceMapping>(std::make_shared<HostMapping>(std::move(mapping)));
  }
  Result<std::shared_ptr<DeviceMapping>> MapForeign(const std::string& gpu_uuid, int fd,
                                                    size_t bytes) override {
    TANDEM_RETURN_IF_ERROR(CheckForeignMemfd(fd, bytes));
    return Map(gpu_uuid, fd, bytes);
  }
  Result<UniqueFd> Allocate(const std::string&, size_t bytes, size_t* allocated) override {
    *allocated = bytes;
    return CreateSealedMemfd("tandem-registered", bytes);
  }
  Result<bool> Exchange32(const std::string&, uint32_t* word, uint32_t from, uint32_t to,
                          Clock::time_point) override {
    return std::atomic_ref<uint32_t>(*word).compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }
  Status CopyNow(const std::string&, void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return Status::Ok();
  }
  Result<ForeignRange> Describe(const void*, size_t) override {
    return InvalidArgument(
               "a bare address cannot be registered on the host backend: use RegisterFd or "
               "AllocateRegistered")
        .WithDetail({.reason = "NOT_REGISTRABLE", .field = "device_pointer"});
  }
  Result<ExportedRange> Export(const ForeignRange&) override {
    return Internal("no such memory on the host backend");
  }
  Result<bool> Holds(const ForeignRange&, uintptr_t, size_t) override { return false; }
  Result<bool> Vanished(const ForeignRange&) override { return true; }
  Result<std::unique_ptr<ClientQueue>> MakeClientQueue(const std::string&, ClientGroup& group) override {
    return std::unique_ptr<ClientQueue>(std::make_unique<HostClientQueue>(group));
  }
};

}  // namespace

Result<std::unique_ptr<ClientQueue>> ClientDevice::MakeClientQueue(const std::string&, ClientGroup&) {
  return Unimplemented("launches of this backend run on engines");
}

Status LaunchStream::RunInOrder(HostEvent&, std::function<void()>&&) {
  return Unimplemented("launches of this backend run on engines");
}

std::shared_ptr<ClientDevice> MakeHostClientDevice() { return std::make_shared<HostClientDevice>(); }

Result<std::shared_ptr<ClientDevice>> MakeClientDevice(const std::string& backend) {
  if (backend == "host") return MakeHostClientDevice();
  if (backend == "cuda") return MakeCudaClientDevice();
  return Unimplemented("this library does not know the daemon's backend '" + backend + "'");
}

}  // namespace tandem::client
