// NCCL's functions where memory runs out: each ends in a result.
//
// This program's allocator fails from a place on that a test chooses. A test chooses one place after the other
// until a run meets none. The process has no NCCL, so that the calls need memory for what they say.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>

#include "client/nccl/real_nccl.h"

namespace {

// How many more allocations there are until memory is out; negative: it is not out.
long left = -1;
bool met = false;  // memory has been out

void* Allocate(size_t bytes) {
  if (left == 0) {
    met = true;
    throw std::bad_alloc();
  }
  if (left > 0) --left;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

// Goes to NCCL as it is.
extern "C" ncclResult_t ncclCommCount(ncclComm_t communicator, int* count);

namespace tandem::nccl {
namespace {

// Before any call, which looks for NCCL once.
const int no_nccl = ::setenv("TANDEM_NCCL_LIBRARY", "/nonexistent", 1);

// How many places `call` has. An exception of it ends this program.
int FailEverywhere(const std::function<ncclResult_t()>& call) {
  EXPECT_EQ(no_nccl, 0);
  constexpr int kMost = 1000;
  for (int place = 0; place < kMost; ++place) {
    left = place;
    met = false;
    const ncclResult_t result = [&]() noexcept { return call(); }();
    left = -1;
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
  left = 0;
  const char* error = ncclGetErrorString(ncclSystemError);
  const char* last = ncclGetLastError(nullptr);
  left = -1;
  EXPECT_NE(error, nullptr);
  EXPECT_NE(last, nullptr);
}

}  // namespace
}  // namespace tandem::nccl
