#include "client/tests/allowance.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace tandem {
namespace {

thread_local bool in_call = false;
thread_local Allowance allocations;
thread_local bool in_background = false;
std::atomic<long> background_left{-1};
std::atomic<bool> background_met{false};

bool SpendInBackground() {
  if (!in_call) return true;
  long left = background_left.load();
  while (left >= 0) {
    if (!background_left.compare_exchange_weak(left, left - 1)) continue;
    if (left > 0) return true;
    background_met = true;  // the next ones succeed
    return false;
  }
  return true;
}

void* AllocateOrNull(size_t bytes) {
  const bool spent = in_background ? SpendInBackground() : allocations.Spend();
  return spent ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
}
void* AllocateOrThrow(size_t bytes) {
  void* memory = AllocateOrNull(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

bool Allowance::Spend() {
  if (left < 0 || !in_call) return true;
  if (left > 0) {
    --left;
    return true;
  }
  met = true;
  if (!lasts) left = -1;
  return false;
}

Allowance& Allocations() { return allocations; }

void BackgroundAllocations::JoinBackground() { in_background = in_call = true; }
void BackgroundAllocations::Allow(long left) {
  background_met = false;
  background_left = left;
}
bool BackgroundAllocations::Met() { return background_met; }

InCall::InCall(bool on) : before_(in_call) { in_call = on; }
InCall::~InCall() { in_call = before_; }

}  // namespace tandem

void* operator new(size_t bytes) { return tandem::AllocateOrThrow(bytes); }
void* operator new[](size_t bytes) { return tandem::AllocateOrThrow(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return tandem::AllocateOrNull(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
