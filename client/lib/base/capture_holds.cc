#include "client/lib/base/capture_holds.h"

#include <utility>

#include "common/exceptions.h"
#include "tandem/host_stream.h"

namespace tandem {
namespace {

class HostCaptureHold final : public CaptureHold {};

}  // namespace

Result<std::unique_ptr<CaptureHold>> CaptureHold::Begin(StreamRef stream) try {
  if (!stream.is_cuda) {
    if (stream.host == nullptr) return InvalidArgument("no stream").WithDetail({.field = "stream"});
    if (!stream.host->IsCapturing()) return FailedPrecondition("the stream does not capture");
    return std::unique_ptr<CaptureHold>(std::make_unique<HostCaptureHold>());
  }
  TANDEM_ASSIGN_OR_RETURN(const uint64_t capture, client::CudaCaptureId(stream.cuda));
  return client::CaptureHolds::Get().Add(capture);
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem

namespace tandem::client {

class CaptureHolds::Hold final : public CaptureHold {
 public:
  Hold(CaptureHolds& holds, uint64_t capture) : holds_(holds), capture_(capture) {}
  ~Hold() override {
    std::map<const void*, std::shared_ptr<void>> objects;  // dropped without the lock
    std::lock_guard lock(holds_.mutex_);
    if (const auto found = holds_.kept_.find(capture_); found != holds_.kept_.end()) {
      objects = std::move(found->second);
      holds_.kept_.erase(found);
    }
  }

 private:
  CaptureHolds& holds_;
  const uint64_t capture_;
};

CaptureHolds& CaptureHolds::Get() {
  static auto* holds = new CaptureHolds;
  return *holds;
}

Result<std::unique_ptr<CaptureHold>> CaptureHolds::Add(uint64_t capture) {
  std::lock_guard lock(mutex_);
  if (!kept_.try_emplace(capture).second) return FailedPrecondition("the capture has a hold already");
  return std::unique_ptr<CaptureHold>(std::make_unique<Hold>(*this, capture));
}

bool CaptureHolds::Keep(uint64_t capture, const void* key,
                        const std::function<std::shared_ptr<void>()>& make) {
  std::lock_guard lock(mutex_);
  const auto found = kept_.find(capture);
  if (found == kept_.end()) return false;
  std::shared_ptr<void>& kept = found->second[key];
  if (kept == nullptr) kept = make();
  return true;
}

}  // namespace tandem::client
