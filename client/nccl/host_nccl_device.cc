// An emulated GPU of the host backend, for tests.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string_view>
#include <vector>

#include "client/nccl/nccl_device.h"

namespace tandem::nccl {
namespace {

tandem_stream* StreamOf(cudaStream_t stream) { return reinterpret_cast<tandem_stream*>(stream); }

struct HostCopy {
  void* to;
  const void* from;
  size_t bytes;
};

void RunCopy(void* copy) {
  const auto* one = static_cast<HostCopy*>(copy);
  std::memmove(one->to, one->from, one->bytes);
}

class HostNcclDevice final : public NcclDevice {
 public:
  explicit HostNcclDevice(int device) : device_(device) {}

  std::string backend() const override { return "host"; }

  Status Gather(const AllGather& all_gather, std::span<const std::byte> own,
                std::span<std::byte> all) override {
    return all_gather(own.data(), all.data(), nullptr);
  }

  Result<std::string> Gpu(const TandemLibrary& library, tandem_client* client) override {
    const char* uuid = library.tandem_client_gpu_uuid(client, device_);
    if (uuid == nullptr) return NotFound("the daemon has no GPU " + std::to_string(device_));
    return std::string(uuid);
  }

  Result<bool> IsCapturing(cudaStream_t stream) override {
    TANDEM_ASSIGN_OR_RETURN(const TandemLibrary* const library, LoadTandem());
    const Status looked = library->Take(library->tandem_stream_synchronize(StreamOf(stream), 0));
    return looked.code() == Code::kFailedPrecondition;
  }

  Status Copy(void* to, const void* from, size_t bytes, cudaStream_t stream) override {
    TANDEM_ASSIGN_OR_RETURN(const TandemLibrary* const library, LoadTandem());
    copies_.push_back({to, from, bytes});
    return library->Take(library->tandem_stream_enqueue(StreamOf(stream), RunCopy, &copies_.back()));
  }

  Status Launch(const TandemLibrary& library, tandem_plan* plan, cudaStream_t stream,
                std::span<void* const> pointers, const tandem_launch_options& options) override {
    std::vector<tandem_binding> bindings;
    for (void* pointer : pointers) bindings.push_back({nullptr, 0, pointer});
    return library.Take(library.tandem_launch_with_options(plan, StreamOf(stream), bindings.data(),
                                                           bindings.size(), &options));
  }

  OwnedHold Hold(const TandemLibrary&, cudaStream_t) override { return nullptr; }

 private:
  const int device_;
  std::deque<HostCopy> copies_;  // all of them: a graph may repeat a copy
};

}  // namespace

std::unique_ptr<NcclDevice> MakeHostNcclDevice(int device) {
  return std::make_unique<HostNcclDevice>(device);
}

Result<std::unique_ptr<NcclDevice>> MakeNcclDevice(int device) {
  const char* kind = std::getenv("TANDEM_NCCL_DEVICE");
  if (kind != nullptr && std::string_view(kind) == "host") return MakeHostNcclDevice(device);
  return MakeCudaNcclDevice(device);
}

}  // namespace tandem::nccl
