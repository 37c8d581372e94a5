#include "client/torch/kernel_state.h"

#include <pthread.h>

#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "client/torch/plan_launch.h"

namespace tandem::torch_ops {

namespace {

std::atomic<PlanTable*> the_plan_table;

// The plans, their memory and the streams' threads are the parent's, and another thread may have held a lock
// at the fork. So the child begins with no plans. Its table is made on first use: no exception may leave fork.
void BeginInForkedChild() { the_plan_table.store(nullptr); }

}  // namespace

// Never destroyed: threads may run ops while the process ends.
PlanTable& ThePlanTable() {
  [[maybe_unused]] static const bool registered = [] {
    if (::pthread_atfork(nullptr, nullptr, &BeginInForkedChild) != 0) throw std::bad_alloc();
    return true;
  }();
  PlanTable* table = the_plan_table.load(std::memory_order_acquire);
  if (table != nullptr) return *table;
  auto made = std::make_unique<PlanTable>();
  return the_plan_table.compare_exchange_strong(table, made.get()) ? *made.release() : *table;
}
MemoryPool& TheMemoryPool() {
  static auto* const pool = new MemoryPool;
  return *pool;
}
KernelThread& ThisThread() {
  thread_local KernelThread state;
  return state;
}
KernelCounts& TheCounts() {
  static KernelCounts counts;
  return counts;
}

}  // namespace tandem::torch_ops

using namespace tandem::torch_ops;  // NOLINT: this file is all glue

namespace {

// The result of `work`, or `otherwise` where memory is out: Python's ctypes cannot take an exception.
template <typename Work, typename Otherwise>
Otherwise Guarded(Otherwise otherwise, Work&& work) noexcept {
  try {
    return std::forward<Work>(work)();
  } catch (...) {
    return otherwise;
  }
}

// A step that calls do without: Python's kernels serve what the table does not have.
template <typename Work>
void Guarded(Work&& work) noexcept {
  try {
    std::forward<Work>(work)();
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace

extern "C" {

int tandem_torch_version(void) { return TANDEM_TORCH_VERSION; }
void tandem_torch_use(const tandem_torch_functions* functions) { UseLibrary(*functions); }

uint64_t tandem_torch_open_group(const char* group_name) {
  return Guarded(uint64_t{0}, [&] { return ThePlanTable().OpenGroup(group_name); });
}
void tandem_torch_hide_group(uint64_t group) {
  Guarded([&] { ThePlanTable().HideGroup(group); });
}
void tandem_torch_close_group(uint64_t group) {
  Guarded([&] { ThePlanTable().CloseGroup(group); });
}
void tandem_torch_set_staging(uint64_t group, const tandem_memory* memory, void* data, size_t bytes) {
  Guarded([&] { ThePlanTable().SetStaging(group, {memory, static_cast<std::byte*>(data), bytes}); });
}

const tandem_memory* tandem_torch_staging(uint64_t group) {
  return Guarded(static_cast<const tandem_memory*>(nullptr), [&] { return ThePlanTable().Staging(group); });
}

int tandem_torch_add_symmetric(uint64_t group, const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  return Guarded(0, [&] {
    ThePlanTable().AddSymmetric(group, {begin, begin + bytes});
    return 1;
  });
}
void tandem_torch_remove_symmetric(uint64_t group, const void* address) {
  Guarded([&] { ThePlanTable().RemoveSymmetric(group, reinterpret_cast<uintptr_t>(address)); });
}

int tandem_torch_add_arena(int device, void* base, size_t bytes) {
  return Guarded(0, [&] {
    TheMemoryPool().AddArena(device, static_cast<std::byte*>(base), bytes);
    return 1;
  });
}
void* tandem_torch_pool_allocate(size_t bytes, int device, void*) {
  return Guarded(static_cast<void*>(nullptr),
                 [&] { return static_cast<void*>(TheMemoryPool().Allocate(device, bytes)); });
}
void tandem_torch_pool_free(void* piece, size_t, int, void*) {
  Guarded([&] { TheMemoryPool().Free(static_cast<std::byte*>(piece)); });
}

uint64_t tandem_torch_add_plan(uint64_t group, const tandem_torch_plan* plan) {
  const CallKey* key = ThisThread().handed_on;
  if (key == nullptr || plan->slot_count > CallArguments::kMaxTensors) return 0;
  return Guarded(uint64_t{0}, [&] { return ThePlanTable().AddPlan(group, *key, *plan); });
}
void tandem_torch_add_call(uint64_t group, uint64_t plan) {
  const CallKey* key = ThisThread().handed_on;
  if (key == nullptr) return;
  Guarded([&] { ThePlanTable().AddCall(group, *key, plan); });
}
void tandem_torch_remove_plan(uint64_t group, uint64_t plan) {
  Guarded([&] { ThePlanTable().RemovePlan(group, plan); });
}
uint64_t tandem_torch_tick(uint64_t group) {
  return Guarded(uint64_t{0}, [&] { return ThePlanTable().Tick(group); });
}
uint64_t tandem_torch_last_use(uint64_t group, uint64_t plan) {
  return Guarded(uint64_t{0}, [&] { return ThePlanTable().LastUse(group, plan); });
}

void tandem_torch_fail(const char* text) {
  KernelThread& thread = ThisThread();
  thread.python_failed = true;
  Guarded([&] { thread.failure.text = text; });
}
int tandem_torch_take_failure(const char** text, tandem_status** status) {
  KernelFailure& failure = ThisThread().failure;
  const bool there = failure.there;
  *text = failure.text.c_str();
  *status = failure.status;
  failure.there = false;
  failure.status = nullptr;
  return there ? 1 : 0;
}

void tandem_torch_read_counts(tandem_torch_counts* counts) {
  *counts = {TheCounts().launched, TheCounts().handed_on, LibraryNanoseconds()};
}
void tandem_torch_measure(int on) { MeasureLibrary(on != 0); }

}  // extern "C"
