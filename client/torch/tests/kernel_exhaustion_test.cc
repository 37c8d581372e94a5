// Kernels of torch.ops.tandem where memory runs out or torch fails, and the functions that Python calls. A
// kernel throws, and torch makes Python's exception of that. A function returns. Neither loses anything.
//
// A test chooses the place at which memory runs out or torch fails. It takes one place after the other until
// a run meets none.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <optional>

#include "client/tests/allowance.h"
#include "client/torch/tests/fake_torch.h"
#include "client/torch/torch_ops.h"

namespace tandem::torch_ops {
namespace {

constexpr char kGroup[] = "a group whose name is too long to lie in a string itself";

// Calls a function as Python does, by ctypes. An exception of the function ends this program.
template <typename Function>
auto FromPython(Function function) noexcept {
  const InCall in(true);
  return function();
}

// Runs a kernel as torch does, which translates exceptions. Returns whether the kernel has thrown none.
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

// Returns the sum, or nothing if the kernel has failed.
std::optional<float> AllReduce(float value) {
  StableIValue stack[] = {NewTensor(value), NewText("sum"), NewText(kGroup)};
  if (!Run("all_reduce", stack)) return std::nullopt;
  const float sum = ValueOf(stack[0]);
  DeleteTensor(stack[0]);
  return sum;
}

// Returns the product, or nothing if the kernel has failed.
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

// Takes the failure, as the package does after a kernel's exception.
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

// Runs the kernels and calls the functions of a group. Returns whether all have succeeded.
bool UseAll() {
  static int device = 0;  // new for each run, since a device keeps its arena
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
  void TearDown() override {
    Fake() = {};
    Allocations() = {};
  }

  // Calls UseAll with one place after the other at which `allowance` runs out. Returns how many places there
  // are.
  static int FailEverywhere(Allowance* allowance, bool lasts = false) {
    constexpr int kMost = 5000;
    for (int place = 0; place < kMost && !HasFailure(); ++place) {
      SCOPED_TRACE(place);
      *allowance = {.left = place, .lasts = lasts};
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

TEST_F(KernelExhaustionTest, MemoryRunsOut) { EXPECT_GE(FailEverywhere(&Allocations()), 20); }

TEST_F(KernelExhaustionTest, MemoryRunsOutForGood) { EXPECT_GE(FailEverywhere(&Allocations(), true), 20); }

TEST_F(KernelExhaustionTest, MemoryRunsOutWherePythonFails) {
  Fake().python_fails = true;
  EXPECT_GE(FailEverywhere(&Allocations()), 20);
}

TEST_F(KernelExhaustionTest, MemoryRunsOutWhereALaunchFails) {
  Fake().launches_fail = true;
  EXPECT_GE(FailEverywhere(&Allocations()), 20);
}

TEST_F(KernelExhaustionTest, TorchFails) { EXPECT_GE(FailEverywhere(&Fake().shims), 50); }

TEST_F(KernelExhaustionTest, TorchFailsWherePythonFails) {
  Fake().python_fails = true;
  EXPECT_GE(FailEverywhere(&Fake().shims), 50);
}

TEST_F(KernelExhaustionTest, AForkNeedsNoMemory) {
  ASSERT_NE(OpenGroup(), 0u);
  CloseGroup();
  pid_t child = -1;
  {
    const InCall in(true);
    Allocations() = {.left = 0};
    child = ::fork();
    if (child == 0) ::_exit(tandem_torch_open_group(kGroup) == 0 ? 0 : 1);
    Allocations() = {};
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Peers would write a call's output into that range, whatever it has become meanwhile.
TEST_F(KernelExhaustionTest, ARangeThatIsNotForgottenForWantOfMemoryIsUsedNoMore) {
  std::byte elsewhere{};
  ASSERT_NE(OpenGroup(), 0u);
  tandem_torch_add_symmetric(Fake().group, &elsewhere, 1);
  EXPECT_EQ(AllReduce(1), 1);
  const uint64_t python = HandedOn();
  EXPECT_EQ(AllReduce(2), 2);
  EXPECT_EQ(HandedOn(), python) << "the table has the call";
  Allocations() = {.left = 0};
  FromPython([&] { return tandem_torch_remove_symmetric(Fake().group, &elsewhere), 0; });
  EXPECT_TRUE(Allocations().met);
  Allocations() = {};
  EXPECT_EQ(AllReduce(3), 3);
  EXPECT_EQ(HandedOn(), python + 1);
  CloseGroup();
}

}  // namespace
}  // namespace tandem::torch_ops
