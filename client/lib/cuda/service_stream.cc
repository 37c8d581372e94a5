#include "client/lib/cuda/service_stream.h"

#include <thread>

namespace tandem::client {
namespace {

constexpr auto kPollPause = std::chrono::microseconds(20);

}  // namespace

Result<bool> AwaitServiceStream(cuda::CudaDevice& device, std::chrono::steady_clock::time_point deadline) {
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const bool done, device.driver().StreamQuery(device.service_stream()));
    if (done) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPollPause);
  }
}

}  // namespace tandem::client
