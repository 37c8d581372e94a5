#include "client/torch/plan_launch.h"

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <new>

namespace tandem::torch_ops {
namespace {

using Clock = std::chrono::steady_clock;

// Python continues a longer wait, so that it sees signals.
constexpr int64_t kFirstWaitMs = 500;

tandem_torch_functions library;
std::atomic<bool> measuring = false;
std::atomic<uint64_t> library_ns = 0;

// Adds its lifetime to the time in the library, while that time is measured.
class LibraryTime {
 public:
  LibraryTime() : on_(measuring.load(std::memory_order_relaxed)) {
    if (on_) begun_ = Clock::now();
  }
  ~LibraryTime() {
    if (!on_) return;
    const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun_);
    library_ns.fetch_add(static_cast<uint64_t>(took.count()), std::memory_order_relaxed);
  }
  LibraryTime(const LibraryTime&) = delete;
  LibraryTime& operator=(const LibraryTime&) = delete;

 private:
  const bool on_;
  Clock::time_point begun_;
};

tandem_launch_options OptionsOf(const TablePlan& plan, const CallRows& rows) {
  return {sizeof(tandem_launch_options), plan.deadline_ms, nullptr, rows.rows};
}

RunOutcome Failure(tandem_status* status) {
  RunOutcome outcome{RunState::kFailed, status, {}};
  try {
    outcome.text = library.status_message(status);
  } catch (const std::bad_alloc&) {
    outcome.text = "no memory";  // the status has the text, too
  }
  return outcome;
}

// A tensor on memory of another owner, who keeps it longer.
class BorrowedTensor {
 public:
  BorrowedTensor(void* data, const CallTensor& like, std::span<const int64_t> strides) {
    CheckTorch(aoti_torch_create_tensor_from_blob(data, static_cast<int64_t>(like.shape.size()),
                                                  like.shape.data(), strides.data(), 0, like.dtype,
                                                  like.device_type, like.device_index, &handle_),
               "makes a view");
  }
  ~BorrowedTensor() { (void)aoti_torch_delete_tensor_object(handle_); }
  BorrowedTensor(const BorrowedTensor&) = delete;
  BorrowedTensor& operator=(const BorrowedTensor&) = delete;
  AtenTensorHandle get() const { return handle_; }

 private:
  AtenTensorHandle handle_ = nullptr;
};

// Copies a tensor that is not contiguous to staging memory, or from there.
void CopyStrided(const CallTensor& tensor, std::byte* staged, bool from_staging) {
  std::array<int64_t, 0xFF> strides;
  int64_t step = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= tensor.shape[i];
  }
  const BorrowedTensor view(staged, tensor, {strides.data(), tensor.shape.size()});
  CheckTorch(aoti_torch_copy_(from_staging ? tensor.handle : view.get(),
                              from_staging ? view.get() : tensor.handle, 0),
             "copies a tensor");
}

void CopyArgument(const CallTensor& tensor, std::byte* staged, uint64_t bytes, bool from_staging) {
  if (bytes == 0) return;
  if (!tensor.contiguous) {
    CopyStrided(tensor, staged, from_staging);
  } else if (from_staging) {
    std::memcpy(tensor.data, staged, bytes);
  } else {
    std::memcpy(staged, tensor.data, bytes);
  }
}

void* DataOf(AtenTensorHandle tensor) {
  void* data = nullptr;
  CheckTorch(aoti_torch_get_data_ptr(tensor, &data), "reads a tensor");
  return data;
}

void* SlotData(const tandem_torch_slot& slot, std::span<const CallTensor> arguments,
               std::span<const AtenTensorHandle> results) {
  return slot.source == TANDEM_TORCH_ARGUMENT ? arguments[slot.index].data : DataOf(results[slot.index]);
}

// Whether the wait's own time is over. A launch that misses its deadline has another reason.
bool GoesOn(const tandem_status* status) {
  return library.status_code(status) == TANDEM_DEADLINE_EXCEEDED &&
         std::strcmp(library.status_reason(status), "NOT_ENDED") == 0;
}

// Waits until the plan's launches have ended, at the latest by their deadline.
void AwaitEnd(const TablePlan& plan) {
  for (bool ended = false; !ended;) {
    tandem_status* waited = library.plan_wait(plan.plan, kFirstWaitMs);
    ended = waited == nullptr || !GoesOn(waited);
    if (waited != nullptr) library.status_free(waited);
  }
}

// Returns once the plan's launches have ended, so that their memory is free again. A launch that returns an
// error may be in flight all the same.
RunOutcome LaunchAndWait(const TablePlan& plan, const CallRows& rows,
                         std::span<const tandem_binding> bindings, bool (*wait_on)(uint64_t plan)) {
  tandem_status *failed = nullptr, *waited = nullptr;
  {
    const LibraryTime time;
    const tandem_launch_options options = OptionsOf(plan, rows);
    failed = library.launch_with_options(plan.plan, plan.stream, bindings.data(), bindings.size(), &options);
    waited = library.plan_wait(plan.plan, kFirstWaitMs);
  }
  if (waited != nullptr && GoesOn(waited)) {
    library.status_free(waited);
    waited = nullptr;
    bool ended = false;
    try {
      ended = wait_on(plan.id);
    } catch (...) {
      // Python was not reached. The staging memory is the launch's still.
      AwaitEnd(plan);
      if (failed != nullptr) library.status_free(failed);
      throw;
    }
    if (!ended) {
      if (failed != nullptr) library.status_free(failed);
      return {RunState::kFailed, nullptr, {}};
    }
  }
  if (failed != nullptr && waited != nullptr) library.status_free(waited);
  if (failed == nullptr) failed = waited;
  return failed == nullptr ? RunOutcome{} : Failure(failed);
}

RunOutcome RunOnHost(GroupTable& group, TablePlan& plan, const CallRows& rows,
                     std::span<const CallTensor> arguments, std::span<const AtenTensorHandle> results,
                     bool (*wait_on)(uint64_t plan)) {
  const StagingMemory staging = group.staging;
  if (staging.bytes < plan.staging_bytes) return {RunState::kGone, nullptr, {}};
  std::array<tandem_binding, CallArguments::kMaxTensors> bindings{};
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const tandem_torch_slot& slot = plan.slots[i];
    if (slot.symmetric == TANDEM_TORCH_SYMMETRIC) {
      bindings[i] = {nullptr, 0, SlotData(slot, arguments, results)};
      continue;
    }
    const uint64_t bytes = plan.SlotBytes(slot, rows);
    if (bytes != 0) bindings[i] = {staging.memory, slot.offset, nullptr};
    if (!slot.written) CopyArgument(arguments[slot.index], staging.data + slot.offset, bytes, false);
  }
  RunOutcome outcome = LaunchAndWait(plan, rows, {bindings.data(), plan.slots.size()}, wait_on);
  if (outcome.state != RunState::kRan) return outcome;
  for (const tandem_torch_slot& slot : plan.slots) {
    if (!slot.written || slot.symmetric == TANDEM_TORCH_SYMMETRIC) continue;
    const uint64_t bytes = plan.SlotBytes(slot, rows);
    if (slot.source == TANDEM_TORCH_ARGUMENT) {
      CopyArgument(arguments[slot.index], staging.data + slot.offset, bytes, true);
    } else if (bytes != 0) {
      std::memcpy(DataOf(results[slot.index]), staging.data + slot.offset, bytes);
    }
  }
  return {};
}

using CurrentStream = AOTITorchError (*)(int32_t device, void** stream);

// The function of torch's CUDA library, which a torch without CUDA does not have.
CurrentStream FindCurrentStream() {
  void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch_cuda == nullptr) return nullptr;
  return reinterpret_cast<CurrentStream>(dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream"));
}

RunOutcome RunOnCuda(TablePlan& plan, const CallRows& rows, std::span<const CallTensor> arguments,
                     std::span<const AtenTensorHandle> results) {
  static const CurrentStream current_stream = FindCurrentStream();
  if (current_stream == nullptr) return {RunState::kGone, nullptr, {}};
  void* stream = nullptr;
  CheckTorch(current_stream(arguments.front().device_index, &stream), "looks for its stream");
  std::array<void*, CallArguments::kMaxTensors> pointers;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    pointers[i] = SlotData(plan.slots[i], arguments, results);
  }
  const LibraryTime time;
  const tandem_launch_options options = OptionsOf(plan, rows);
  tandem_status* failed = library.launch_cuda_pointers_with_options(plan.plan, stream, pointers.data(),
                                                                    plan.slots.size(), &options);
  return failed == nullptr ? RunOutcome{} : Failure(failed);
}

}  // namespace

void UseLibrary(const tandem_torch_functions& functions) { library = functions; }
void MeasureLibrary(bool on) { measuring = on; }
uint64_t LibraryNanoseconds() { return library_ns; }
void FreeStatus(tandem_status* status) { library.status_free(status); }

int32_t TorchDType(int tandem_dtype) {
  switch (tandem_dtype) {
    case TANDEM_DTYPE_F32: return aoti_torch_dtype_float32();
    case TANDEM_DTYPE_F16: return aoti_torch_dtype_float16();
    case TANDEM_DTYPE_BF16: return aoti_torch_dtype_bfloat16();
    case TANDEM_DTYPE_F8E4M3: return aoti_torch_dtype_float8_e4m3fn();
    case TANDEM_DTYPE_F8E5M2: return aoti_torch_dtype_float8_e5m2();
    case TANDEM_DTYPE_I32: return aoti_torch_dtype_int32();
    case TANDEM_DTYPE_I64: return aoti_torch_dtype_int64();
    case TANDEM_DTYPE_U8: return aoti_torch_dtype_uint8();
    default: return -1;
  }
}

uint32_t SymmetricSlots(const TablePlan& plan, const CallRows& rows, const SymmetricRanges& ranges,
                        std::span<const CallTensor> arguments, std::span<const AtenTensorHandle> results) {
  uint32_t found = 0;
  if (arguments.size() < plan.arguments) return found;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const tandem_torch_slot& slot = plan.slots[i];
    if (slot.symmetric == TANDEM_TORCH_NEVER || slot.bytes == 0) continue;
    if (slot.source == TANDEM_TORCH_ARGUMENT && !arguments[slot.index].contiguous) continue;
    const auto begin = reinterpret_cast<uintptr_t>(SlotData(slot, arguments, results));
    const uint64_t bytes = plan.SlotBytes(slot, rows);
    for (const SymmetricRange& range : ranges) {
      if (begin >= range.begin && begin < range.end && bytes <= range.end - begin) found |= uint32_t{1} << i;
    }
  }
  return found;
}

RunOutcome RunPlan(GroupTable& group, TablePlan& plan, const CallRows& rows,
                   std::span<const CallTensor> arguments, std::span<const AtenTensorHandle> results,
                   bool (*wait_on)(uint64_t plan)) {
  std::lock_guard running(group.running);
  if (plan.removed || arguments.size() < plan.arguments || results.size() < plan.results.size())
    return {RunState::kGone, nullptr, {}};
  plan.last_use.store(++group.calls, std::memory_order_relaxed);
  return plan.stream != nullptr ? RunOnHost(group, plan, rows, arguments, results, wait_on)
                                : RunOnCuda(plan, rows, arguments, results);
}

}  // namespace tandem::torch_ops
