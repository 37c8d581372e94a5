#include "client/jax/host_calls.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

namespace tandem::jax_calls {
namespace {

constexpr int64_t kSliceMs = 200;  // between two looks whether the group is being closed
constexpr size_t kAlignment = 256;
constexpr size_t kLeastStaging = size_t{1} << 16;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

CallFailure TakeFailure(const tandem_jax_functions& library, tandem_status* status) {
  if (status == nullptr) return {};
  CallFailure failure{library.status_code(status), library.status_message(status)};
  library.status_free(status);
  return failure;
}

HostCalls::HostCalls(const tandem_jax_functions& library, const tandem_jax_host_group& group)
    : library_(library),
      client_(group.client),
      gpu_(group.gpu_uuid),
      rank_(group.rank),
      order_(group.order),
      deadline_ms_(group.deadline_ms),
      thread_([this] { Run(); }) {}

HostCalls::~HostCalls() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  FailAll({TANDEM_CANCELLED, "the group has been left"});
  if (staging_ != nullptr) library_.memory_free(staging_);
  if (stream_ != nullptr) library_.stream_free(stream_);
}

void HostCalls::Add(HostCall call) {
  std::unique_lock lock(mutex_);
  if (const CallFailure failure = failure_; failure.code != TANDEM_OK) {
    lock.unlock();
    call.done(failure);
    return;
  }
  pending_.push_back(std::move(call));
  changed_.notify_all();
}

void HostCalls::FailAll(const CallFailure& failure) {
  std::deque<HostCall> failed;
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    failed.swap(pending_);
  }
  for (const HostCall& call : failed) call.done(failure);
}

void HostCalls::Run() {
  CallFailure failure = TakeFailure(library_, library_.stream_create(&stream_));
  CallName own;
  while (failure.code == TANDEM_OK && WaitForCall(&own)) {
    CallName chosen;
    HostCall call;
    failure = Choose(own, &chosen);
    if (failure.code == TANDEM_OK) failure = Take(chosen, &call);
    if (failure.code != TANDEM_OK) break;
    failure = Launch(call);
    call.done(failure);
  }
  if (failure.code != TANDEM_OK) FailAll(failure);
}

bool HostCalls::WaitForCall(CallName* first) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || !pending_.empty(); });
  if (ending_) return false;
  *first = pending_.front().name;
  return true;
}

CallFailure HostCalls::Choose(const CallName& own, CallName* chosen) {
  const size_t output = Aligned(sizeof(CallName));
  if (CallFailure failure = Reserve(2 * output); failure.code != TANDEM_OK) return failure;
  auto* const memory = static_cast<std::byte*>(library_.memory_data(staging_));
  std::memcpy(memory, &own, sizeof(own));
  CallFailure failure = LaunchToEnd(order_, -1, {{staging_, 0, nullptr}, {staging_, output, nullptr}});
  if (failure.code == TANDEM_OK) std::memcpy(chosen, memory + output, sizeof(*chosen));
  return failure;
}

CallFailure HostCalls::Take(const CallName& name, HostCall* call) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms_);
  std::unique_lock lock(mutex_);
  const auto find = [&] {
    return std::find_if(pending_.begin(), pending_.end(),
                        [&](const HostCall& one) { return one.name == name; });
  };
  const bool there = changed_.wait_until(lock, until, [&] { return ending_ || find() != pending_.end(); });
  if (ending_) return {TANDEM_CANCELLED, "the group has been left"};
  if (!there) {
    return {TANDEM_DEADLINE_EXCEEDED, "rank 0 has made a call that rank " + std::to_string(rank_) +
                                          " has not made within " + std::to_string(deadline_ms_) +
                                          " ms: all ranks run the same programs in the same order"};
  }
  const auto found = find();
  *call = std::move(*found);
  pending_.erase(found);
  return {};
}

CallFailure HostCalls::Launch(const HostCall& call) {
  size_t total = 0;
  for (const HostSlot& slot : call.slots) total += Aligned(slot.bytes);
  if (CallFailure failure = Reserve(total); failure.code != TANDEM_OK) return failure;
  auto* const memory = static_cast<std::byte*>(library_.memory_data(staging_));
  std::vector<tandem_binding> bindings;
  size_t offset = 0;
  for (const HostSlot& slot : call.slots) {
    bindings.push_back({staging_, offset, nullptr});
    if (!slot.written) std::memcpy(memory + offset, slot.data, slot.bytes);
    offset += Aligned(slot.bytes);
  }
  CallFailure failure = LaunchToEnd(call.plan, call.rows, bindings);
  if (failure.code != TANDEM_OK) return failure;
  offset = 0;
  for (const HostSlot& slot : call.slots) {
    if (slot.written) std::memcpy(slot.data, memory + offset, slot.bytes);
    offset += Aligned(slot.bytes);
  }
  return {};
}

CallFailure HostCalls::LaunchToEnd(tandem_plan* plan, int64_t rows,
                                   const std::vector<tandem_binding>& bindings) {
  const tandem_launch_options options{sizeof(tandem_launch_options), 0, nullptr, rows};
  const CallFailure launched = TakeFailure(
      library_, library_.launch_with_options(plan, stream_, bindings.data(), bindings.size(), &options));
  // A launch that returns an error may be in flight all the same.
  while (true) {
    tandem_status* waited = library_.plan_wait(plan, kSliceMs);
    const bool goes_on = waited != nullptr && std::strcmp(library_.status_reason(waited), "NOT_ENDED") == 0;
    const CallFailure failure = TakeFailure(library_, waited);
    if (!goes_on) return launched.code != TANDEM_OK ? launched : failure;
    const std::lock_guard lock(mutex_);
    if (ending_) return {TANDEM_CANCELLED, "the group has been left"};
  }
}

CallFailure HostCalls::Reserve(size_t bytes) {
  if (bytes <= staging_bytes_) return {};
  size_t wanted = std::max(kLeastStaging, staging_bytes_);
  while (wanted < bytes) wanted *= 2;
  tandem_memory* memory = nullptr;
  CallFailure failure =
      TakeFailure(library_, library_.allocate_registered(client_, wanted, gpu_.c_str(), &memory));
  if (failure.code != TANDEM_OK) return failure;
  if (staging_ != nullptr) library_.memory_free(staging_);
  staging_ = memory;
  staging_bytes_ = wanted;
  return {};
}

}  // namespace tandem::jax_calls
