// Kernels of torch.ops.tandem, and the functions that Python calls, where memory runs out or torch fails: a
// kernel ends in an exception, which torch makes Python's, a function returns, and nothing is lost.
//
// This program's allocator and its torch fail at a place that a test chooses. A test chooses one place after
// the other until a run meets none.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <optional>

#include "client/torch/tests/fake_torch.h"
#include "client/torch/torch_ops.h"

namespace {

void* Allocate(size_t bytes) {
  void* memory =
      tandem::torch_ops::Fake().allocations.Spend() ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
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

namespace tandem::torch_ops {
namespace {

constexpr char kGroup[] = "a group whose name is too long to lie in a string itself";

// A function that Python calls by ctypes: an exception of it ends this program.
template <typename Function>
auto FromPython(Function function) noexcept {
  const InCall in(true);
  return function();
}

// Whether the kernel has run; an exception is torch's to translate.
bool Run(const char* op, StableIValue* stack) {
  const Kernel kernel = KernelOf(op);
  const InCall in(true);
  try {
    kernel(stack, 0, 0);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// The sum; none: the kernel has failed.
std::optional<float> AllReduce(float value) {
  StableIValue stack[] = {NewTensor(value), NewText("sum"), NewText(kGroup)};
  if (!Run("all_reduce", stack)) return std::nullopt;
  const float sum = ValueOf(stack[0]);
  DeleteTensor(stack[0]);
  return sum;
}

// The product; none: the kernel has failed.
std::optional<float> AllGatherMatmul(float value) {
  StableIValue stack[] = {NewTensor(value), NewList({NewTensor(0)}), 0, NewText(kGroup), 0, 1};
  if (!Run("all_gather_matmul", stack)) return std::nullopt;
  float product = -1;
  for (StableIValue tensor : TakeList(stack[1])) {
    product = ValueOf(tensor);
    DeleteTensor(tensor);
  }
  auto* gathered = reinterpret_cast<StableIValue*>(stack[0]);
  EXPECT_NE(gathered, nullptr);
  if (gathered == nullptr) return std::nullopt;
  DeleteTensor(*gathered);
  delete gathered;
  return product;
}

// As the package does behind a kernel's exception.
void TakeFailure() {
  FromPython([] {
    const char* text = nullptr;
    tandem_status* status = nullptr;
    (void)tandem_torch_take_failure(&text, &status);
    if (status != nullptr) DeleteStatus(status);
    return 0;
  });
}

uint64_t OpenGroup() {
  Fake().group = FromPython([] { return tandem_torch_open_group(kGroup); });
  if (Fake().group != 0) UseFakeLibrary();
  return Fake().group;
}
void CloseGroup() {
  FromPython([] { return tandem_torch_close_group(Fake().group), 0; });
}

// Kernels and functions of a group. Returns whether all have succeeded.
bool UseAll() {
  static int device = 0;  // an arena stays its device's
  ++device;
  constexpr size_t kArena = 4096;
  void* const arena = reinterpret_cast<void*>(static_cast<uintptr_t>(device) * kArena);  // is not touched
  std::byte elsewhere{};
  if (OpenGroup() == 0) return false;
  bool ok = FromPython([&] {
    const bool added = tandem_torch_add_symmetric(Fake().group, &elsewhere, 1) != 0 &&
                       tandem_torch_add_arena(device, arena, kArena) != 0;
    void* piece = tandem_torch_pool_allocate(kArena, device, nullptr);
    if (piece != nullptr) tandem_torch_pool_free(piece, kArena, device, nullptr);
    return added && piece != nullptr;
  });
  for (int i = 0; i < 3; ++i) {
    Fake().wait_is_long = i == 2;
    const auto value = static_cast<float>(i);
    const std::optional<float> sum = AllReduce(value);
    EXPECT_EQ(sum.value_or(value), value);
    EXPECT_FALSE(Fake().in_flight) << "the next call uses the launch's memory";
    TakeFailure();
    const std::optional<float> product = AllGatherMatmul(value);
    EXPECT_EQ(product.value_or(value), value);
    TakeFailure();
    ok = ok && sum && product;
  }
  FromPython([&] {
    tandem_torch_remove_symmetric(Fake().group, &elsewhere);
    (void)tandem_torch_staging(Fake().group);
    (void)tandem_torch_last_use(Fake().group, tandem_torch_tick(Fake().group));
    return 0;
  });
  CloseGroup();
  Fake().wait_is_long = false;
  EXPECT_EQ(Fake().live, 0) << "something is lost";
  return ok;
}

uint64_t HandedOn() {
  tandem_torch_counts counts{};
  tandem_torch_read_counts(&counts);
  return counts.handed_on;
}

class KernelExhaustionTest : public ::testing::Test {
 protected:
  void TearDown() override { Fake() = {}; }

  // UseAll with one place after the other at which `allowance` runs out; how many places there are.
  static int FailEverywhere(Allowance* allowance, bool lasts = false) {
    constexpr int kMost = 5000;
    for (int place = 0; place < kMost && !HasFailure(); ++place) {
      SCOPED_TRACE(place);
      *allowance = {place, false, lasts};
      const bool ok = UseAll();
      const bool met = allowance->met;
      *allowance = {};
      if (met) continue;
      EXPECT_EQ(ok, !Fake().python_fails && !Fake().launches_fail);
      return place;
    }
    ADD_FAILURE() << "a place, or more than " << kMost;
    return kMost;
  }
};

TEST_F(KernelExhaustionTest, MemoryRunsOut) { EXPECT_GE(FailEverywhere(&Fake().allocations), 20); }

TEST_F(KernelExhaustionTest, MemoryRunsOutForGood) {
  EXPECT_GE(FailEverywhere(&Fake().allocations, true), 20);
}

TEST_F(KernelExhaustionTest, MemoryRunsOutWherePythonFails) {
  Fake().python_fails = true;
  EXPECT_GE(FailEverywhere(&Fake().allocations), 20);
}

TEST_F(KernelExhaustionTest, MemoryRunsOutWhereALaunchFails) {
  Fake().launches_fail = true;
  EXPECT_GE(FailEverywhere(&Fake().allocations), 20);
}

TEST_F(KernelExhaustionTest, TorchFails) { EXPECT_GE(FailEverywhere(&Fake().shims), 50); }

TEST_F(KernelExhaustionTest, TorchFailsWherePythonFails) {
  Fake().python_fails = true;
  EXPECT_GE(FailEverywhere(&Fake().shims), 50);
}

TEST_F(KernelExhaustionTest, AForkNeedsNoMemory) {
  ASSERT_NE(OpenGroup(), 0u);
  CloseGroup();
  Fake().in_call = true;
  Fake().allocations = {0, false};
  const pid_t child = ::fork();
  if (child == 0) ::_exit(tandem_torch_open_group(kGroup) == 0 ? 0 : 1);
  Fake() = {};
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Else a call whose output lies there would have its peers write into memory that is something else.
TEST_F(KernelExhaustionTest, ARangeThatIsNotForgottenForWantOfMemoryIsUsedNoMore) {
  std::byte elsewhere{};
  ASSERT_NE(OpenGroup(), 0u);
  tandem_torch_add_symmetric(Fake().group, &elsewhere, 1);
  EXPECT_EQ(AllReduce(1), 1);
  const uint64_t python = HandedOn();
  EXPECT_EQ(AllReduce(2), 2);
  EXPECT_EQ(HandedOn(), python) << "the table has the call";
  Fake().allocations = {0, false};
  FromPython([&] { return tandem_torch_remove_symmetric(Fake().group, &elsewhere), 0; });
  EXPECT_TRUE(Fake().allocations.met);
  Fake().allocations = {};
  EXPECT_EQ(AllReduce(3), 3);
  EXPECT_EQ(HandedOn(), python + 1);
  CloseGroup();
}

}  // namespace
}  // namespace tandem::torch_ops
