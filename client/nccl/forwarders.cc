// The functions that go to NCCL as they are, also those whose types nccl.h does not have: a few instructions
// for each name keep the registers of the arguments, ask where NCCL's function is, and jump there.
#include <atomic>

#include "client/nccl/real_nccl.h"
#include "client/nccl/thread_group.h"

#ifndef __x86_64__
#error "the forwarders are written for x86-64"
#endif

namespace tandem::nccl {

// As the assembler writes it below.
struct Forwarder {
  const char* name;
  std::atomic<void*> address;
  long touches_groups;
};

namespace {
ncclResult_t ReturnInvalidUsage() { return ncclInvalidUsage; }
ncclResult_t ReturnSystemError() { return ncclSystemError; }

void* FindTarget(Forwarder* forwarder) {
  if (forwarder->touches_groups != 0) ThisGroup().HandOver();
  void* address = forwarder->address.load(std::memory_order_acquire);
  if (address == nullptr) {
    address = FindInNccl(forwarder->name);
    forwarder->address.store(address, std::memory_order_release);
  }
  if (address != nullptr) return address;
  Missing(forwarder->name);
  return reinterpret_cast<void*>(&ReturnInvalidUsage);
}
}  // namespace

// The function to jump to: NCCL's, or one that fails where NCCL has none or memory is out.
extern "C" __attribute__((visibility("hidden"), used)) void* tandem_nccl_target(
    Forwarder* forwarder) noexcept {
  try {
    return FindTarget(forwarder);
  } catch (...) {
    return reinterpret_cast<void*>(&ReturnSystemError);
  }
}

}  // namespace tandem::nccl

// The forwarder's address is in r11, which no argument uses. The stack has a multiple of 16 bytes at the call.
asm(R"(
  .text
  .type tandem_nccl_forward, @function
tandem_nccl_forward:
  pushq %rbp
  movq %rsp, %rbp
  subq $192, %rsp
  movq %rdi, 0(%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movq %rax, 48(%rsp)
  movups %xmm0, 64(%rsp)
  movups %xmm1, 80(%rsp)
  movups %xmm2, 96(%rsp)
  movups %xmm3, 112(%rsp)
  movups %xmm4, 128(%rsp)
  movups %xmm5, 144(%rsp)
  movups %xmm6, 160(%rsp)
  movups %xmm7, 176(%rsp)
  movq %r11, %rdi
  call tandem_nccl_target
  movq %rax, %r11
  movq 0(%rsp), %rdi
  movq 8(%rsp), %rsi
  movq 16(%rsp), %rdx
  movq 24(%rsp), %rcx
  movq 32(%rsp), %r8
  movq 40(%rsp), %r9
  movq 48(%rsp), %rax
  movups 64(%rsp), %xmm0
  movups 80(%rsp), %xmm1
  movups 96(%rsp), %xmm2
  movups 112(%rsp), %xmm3
  movups 128(%rsp), %xmm4
  movups 144(%rsp), %xmm5
  movups 160(%rsp), %xmm6
  movups 176(%rsp), %xmm7
  leave
  jmp *%r11
  .size tandem_nccl_forward, . - tandem_nccl_forward
)");

// The function under both names, and its Forwarder.
#define TANDEM_NCCL_FORWARDED(name, touches_groups)   \
  asm(".text\n"                                       \
      ".globl nccl" #name ", pnccl" #name             \
      "\n"                                            \
      ".type nccl" #name                              \
      ", @function\n"                                 \
      ".type pnccl" #name                             \
      ", @function\n"                                 \
      "nccl" #name                                    \
      ":\n"                                           \
      "pnccl" #name                                   \
      ":\n"                                           \
      "leaq .Lforwarder_" #name                       \
      "(%rip), %r11\n"                                \
      "jmp tandem_nccl_forward\n"                     \
      ".size nccl" #name ", . - nccl" #name           \
      "\n"                                            \
      ".size pnccl" #name ", . - pnccl" #name         \
      "\n"                                            \
      ".section .data.rel.local, \"aw\", @progbits\n" \
      ".balign 8\n"                                   \
      ".Lforwarder_" #name                            \
      ":\n"                                           \
      ".quad .Lname_" #name ", 0, " #touches_groups   \
      "\n"                                            \
      ".section .rodata, \"a\", @progbits\n"          \
      ".Lname_" #name ": .asciz \"nccl" #name         \
      "\"\n"                                          \
      ".text\n");
#define TANDEM_NCCL_OWN(name)
#define TANDEM_NCCL_PASSED(name) TANDEM_NCCL_FORWARDED(name, 1)
#define TANDEM_NCCL_ASKED(name) TANDEM_NCCL_FORWARDED(name, 0)
#include "client/nccl/nccl_functions.def"
