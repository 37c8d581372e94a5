// NCCL's functions where memory runs out: each ends in a result.
//
// Memory runs out for good at a place that a test chooses. The test takes one place after the other until a
// run meets none. The process has no NCCL, so the calls need memory for what they say.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <utility>

#include "client/nccl/real_nccl.h"
#include "client/tests/allowance.h"

// Goes to NCCL as it is.
extern "C" ncclResult_t ncclCommCount(ncclComm_t communicator, int* count);

namespace tandem::nccl {
namespace {

// Before any call, which looks for NCCL once.
const int no_nccl = ::setenv("TANDEM_NCCL_LIBRARY", "/nonexistent", 1);

// Returns how many places `call` has. An exception of it ends this program.
int FailEverywhere(const std::function<ncclResult_t()>& call) {
  EXPECT_EQ(no_nccl, 0);
  constexpr int kMost = 1000;
  for (int place = 0; place < kMost; ++place) {
    Allocations() = {.left = place, .lasts = true};
    const ncclResult_t result = [&]() noexcept {
      const InCall in(true);
      return call();
    }();
    const bool met = std::exchange(Allocations(), {}).met;
    EXPECT_NE(result, ncclSuccess);
    if (!met) return place;
  }
  ADD_FAILURE() << "more than " << kMost << " places";
  return kMost;
}

TEST(NcclExhaustion, ACollectiveFails) {
  float value = 1;
  EXPECT_GT(FailEverywhere(
                [&] { return ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, nullptr, nullptr); }),
            0);
}

TEST(NcclExhaustion, AFunctionThatIsNcclsAloneFails) {
  int count = 0;
  EXPECT_GT(FailEverywhere([&] { return ncclCommCount(nullptr, &count); }), 0);
}

TEST(NcclExhaustion, TextsNeedNoMemory) {
  const char *error = nullptr, *last = nullptr;
  {
    const InCall in(true);
    Allocations() = {.left = 0, .lasts = true};
    error = ncclGetErrorString(ncclSystemError);
    last = ncclGetLastError(nullptr);
    Allocations() = {};
  }
  EXPECT_NE(error, nullptr);
  EXPECT_NE(last, nullptr);
}

}  // namespace
}  // namespace tandem::nccl
