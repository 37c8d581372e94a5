#include "client/tests/allowance.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace tandem {
namespace {

thread_local bool in_call = false;
thread_local Allowance allocations;

void* AllocateOrNull(size_t bytes) {
  return allocations.Spend() ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
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
