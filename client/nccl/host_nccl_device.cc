// An emulated GPU of the host backend, for tests.
#include <cstdlib>
#include <string_view>

#include "client/nccl/nccl_device.h"

namespace tandem::nccl {
namespace {

tandem_stream* StreamOf(cudaStream_t stream) { return reinterpret_cast<tandem_stream*>(stream); }

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

  Status Launch(const TandemLibrary& library, tandem_group* group, cudaStream_t stream,
                const tandem_collective& collective) override {
    return library.Take(library.tandem_collective_launch(group, &collective, StreamOf(stream)));
  }

  OwnedHold Hold(const TandemLibrary&, cudaStream_t) override { return nullptr; }

 private:
  const int device_;
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
