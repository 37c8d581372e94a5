// File: wgmma.cuh
//
// wgmma, a warpgroup's product of two operands in shared memory: 64×N += 64×32B · N×32B, fp32 sums; N = 64,
// 96, 112, 128, 192, 224 or 256. fp8 operands may be of two types. The hardware keeps about 14 bits of fp8's
// sums while it adds: see fused_exact_mainloop.cuh. `a` and `b` are the operands' matrix descriptors
// (Descriptor*). The warpgroup's 64×N sums lie in registers d[N / 2]: thread t of warp w holds rows 16w + t/4
// (d[4j], d[4j+1]) and 8 more (d[4j+2], d[4j+3]), columns 8j + 2(t%4), +1.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace tandem::cuda::ptx {

__device__ __forceinline__ void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps what reads or writes `d` on this side of the statement: the compiler does not know that wgmma is
// asynchronous.
template <int kCount>
__device__ __forceinline__ void WgmmaSettled(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Rows of 128 bytes along K, as a TMA box with 128-byte swizzle leaves them: groups of 8 rows are 1024 bytes
// apart.
__device__ __forceinline__ uint64_t DescriptorAlongK(uint32_t address) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 16) | ((address & 0x3FFFF) >> 4);
}

// Rows of 64 16-bit elements along N, one row for each K: groups of 8 Ks are 1024 bytes apart, groups of 64
// Ns `group_bytes`.
__device__ __forceinline__ uint64_t DescriptorAlongN(uint32_t address, uint32_t group_bytes) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{group_bytes >> 4} << 16) |
         ((address & 0x3FFFF) >> 4);
}

// A descriptor of what lies `units` of 16 bytes further. Only its lower half changes, in the register where
// it is: the compiler would make each descriptor anew.
__device__ __forceinline__ uint64_t Advanced(uint64_t descriptor, uint32_t units) {
  asm("{\n"
      ".reg .b32 low, high;\n"
      "mov.b64 {low, high}, %0;\n"
      "add.u32 low, low, %1;\n"
      "mov.b64 %0, {low, high};\n"
      "}\n"
      : "+l"(descriptor)
      : "r"(units));
  return descriptor;
}

// The instruction names its N / 2 registers one by one: lists of 16, put together.
#define TANDEM_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TANDEM_R1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TANDEM_R2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TANDEM_R3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TANDEM_R4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TANDEM_R5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TANDEM_R6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TANDEM_R7 \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TANDEM_REGISTERS_32 TANDEM_R0 ", " TANDEM_R1
#define TANDEM_REGISTERS_48 TANDEM_R0 ", " TANDEM_R1 ", " TANDEM_R2
#define TANDEM_REGISTERS_56 TANDEM_R0 ", " TANDEM_R1 ", " TANDEM_R2 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TANDEM_REGISTERS_64 TANDEM_R0 ", " TANDEM_R1 ", " TANDEM_R2 ", " TANDEM_R3
#define TANDEM_REGISTERS_96 TANDEM_REGISTERS_64 ", " TANDEM_R4 ", " TANDEM_R5
#define TANDEM_REGISTERS_112 TANDEM_REGISTERS_96 ", " TANDEM_R6
#define TANDEM_REGISTERS_128 TANDEM_REGISTERS_112 ", " TANDEM_R7
#define TANDEM_D4(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define TANDEM_NEW4(d, i) "=f"(d[i]), "=f"(d[(i) + 1]), "=f"(d[(i) + 2]), "=f"(d[(i) + 3])
#define TANDEM_NEW16(d, i) \
  TANDEM_NEW4(d, i), TANDEM_NEW4(d, (i) + 4), TANDEM_NEW4(d, (i) + 8), TANDEM_NEW4(d, (i) + 12)
#define TANDEM_D16(d, i) TANDEM_D4(d, i), TANDEM_D4(d, (i) + 4), TANDEM_D4(d, (i) + 8), TANDEM_D4(d, (i) + 12)
#define TANDEM_OPERANDS_32(d) TANDEM_D16(d, 0), TANDEM_D16(d, 16)
#define TANDEM_OPERANDS_48(d) TANDEM_D16(d, 0), TANDEM_D16(d, 16), TANDEM_D16(d, 32)
#define TANDEM_OPERANDS_56(d) \
  TANDEM_D16(d, 0), TANDEM_D16(d, 16), TANDEM_D16(d, 32), TANDEM_D4(d, 48), TANDEM_D4(d, 52)
#define TANDEM_OPERANDS_64(d) TANDEM_D16(d, 0), TANDEM_D16(d, 16), TANDEM_D16(d, 32), TANDEM_D16(d, 48)
#define TANDEM_OPERANDS_96(d) TANDEM_OPERANDS_64(d), TANDEM_D16(d, 64), TANDEM_D16(d, 80)
#define TANDEM_OPERANDS_112(d) TANDEM_OPERANDS_96(d), TANDEM_D16(d, 96)
#define TANDEM_OPERANDS_128(d) TANDEM_OPERANDS_112(d), TANDEM_D16(d, 112)

#define TANDEM_NEW_32(d) TANDEM_NEW16(d, 0), TANDEM_NEW16(d, 16)
#define TANDEM_NEW_48(d) TANDEM_NEW_32(d), TANDEM_NEW16(d, 32)
#define TANDEM_NEW_56(d) TANDEM_NEW_48(d), TANDEM_NEW4(d, 48), TANDEM_NEW4(d, 52)
#define TANDEM_NEW_64(d) TANDEM_NEW_48(d), TANDEM_NEW16(d, 48)
#define TANDEM_NEW_96(d) TANDEM_NEW_64(d), TANDEM_NEW16(d, 64), TANDEM_NEW16(d, 80)
#define TANDEM_NEW_112(d) TANDEM_NEW_96(d), TANDEM_NEW16(d, 96)
#define TANDEM_NEW_128(d) TANDEM_NEW_112(d), TANDEM_NEW16(d, 112)

// One overload a number of columns: the instruction's name holds it. Wgmma adds to `d`; WgmmaFirst begins a
// sum, for which what `d` held is neither read nor alive.
#define TANDEM_WGMMA_16(TYPE, N, COUNT, A, B, T)                                                     \
  template <bool kAlongN>                                                                            \
  __device__ __forceinline__ void Wgmma(TYPE, TYPE, float(&d)[COUNT], uint64_t a, uint64_t b) {      \
    TANDEM_WGMMA_ASM(1, N, "k16", TYPE, TYPE, COUNT, A, B, ", 0, " T)                                       \
        : TANDEM_OPERANDS_##COUNT(d) : "l"(a), "l"(b), "n"(kAlongN ? 1 : 0));                        \
  }                                                                                                  \
  template <bool kAlongN>                                                                            \
  __device__ __forceinline__ void WgmmaFirst(TYPE, TYPE, float(&d)[COUNT], uint64_t a, uint64_t b) { \
    TANDEM_WGMMA_ASM(0, N, "k16", TYPE, TYPE, COUNT, A, B, ", 0, " T)                                       \
        : TANDEM_NEW_##COUNT(d) : "l"(a), "l"(b), "n"(kAlongN ? 1 : 0));                             \
  }
#define TANDEM_WGMMA_8(TYPE_A, TYPE_B, N, COUNT, A, B)                                                   \
  template <bool kAlongN>                                                                                \
  __device__ __forceinline__ void Wgmma(TYPE_A, TYPE_B, float(&d)[COUNT], uint64_t a, uint64_t b) {      \
    static_assert(!kAlongN, "8-bit operands lie along K");                                               \
    TANDEM_WGMMA_ASM(1, N, "k32", TYPE_A, TYPE_B, COUNT, A, B, "")                                          \
        : TANDEM_OPERANDS_##COUNT(d) : "l"(a), "l"(b));                                                  \
  }                                                                                                      \
  template <bool kAlongN>                                                                                \
  __device__ __forceinline__ void WgmmaFirst(TYPE_A, TYPE_B, float(&d)[COUNT], uint64_t a, uint64_t b) { \
    static_assert(!kAlongN, "8-bit operands lie along K");                                               \
    TANDEM_WGMMA_ASM(0, N, "k32", TYPE_A, TYPE_B, COUNT, A, B, "")                                          \
        : TANDEM_NEW_##COUNT(d) : "l"(a), "l"(b));                                                       \
  }
// `ADDS`: 1, or 0 for a sum's beginning.
#define TANDEM_WGMMA_ASM(ADDS, N, K, TYPE_A, TYPE_B, COUNT, A, B, MORE)                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " #ADDS ", 0;\n"                                   \
               "wgmma.mma_async.sync.aligned.m64n" #N K ".f32." TANDEM_NAME_##TYPE_A "." TANDEM_NAME_##TYPE_B \
               " {" TANDEM_REGISTERS_##COUNT "}, " A ", " B ", p, 1, 1" MORE ";\n}\n"
#define TANDEM_NAME___nv_bfloat16 "bf16"
#define TANDEM_NAME___half "f16"
#define TANDEM_NAME___nv_fp8_e4m3 "e4m3"
#define TANDEM_NAME___nv_fp8_e5m2 "e5m2"
#define TANDEM_WGMMA_FLOAT8(TYPE_A, TYPE_B)                \
  TANDEM_WGMMA_8(TYPE_A, TYPE_B, 64, 32, "%32", "%33")     \
  TANDEM_WGMMA_8(TYPE_A, TYPE_B, 96, 48, "%48", "%49")     \
  TANDEM_WGMMA_8(TYPE_A, TYPE_B, 112, 56, "%56", "%57")    \
  TANDEM_WGMMA_8(TYPE_A, TYPE_B, 128, 64, "%64", "%65")    \
  TANDEM_WGMMA_8(TYPE_A, TYPE_B, 192, 96, "%96", "%97")    \
  TANDEM_WGMMA_8(TYPE_A, TYPE_B, 224, 112, "%112", "%113") \
  TANDEM_WGMMA_8(TYPE_A, TYPE_B, 256, 128, "%128", "%129")

TANDEM_WGMMA_16(__nv_bfloat16, 64, 32, "%32", "%33", "%34")
TANDEM_WGMMA_16(__nv_bfloat16, 96, 48, "%48", "%49", "%50")
TANDEM_WGMMA_16(__nv_bfloat16, 112, 56, "%56", "%57", "%58")
TANDEM_WGMMA_16(__nv_bfloat16, 128, 64, "%64", "%65", "%66")
TANDEM_WGMMA_16(__nv_bfloat16, 192, 96, "%96", "%97", "%98")
TANDEM_WGMMA_16(__nv_bfloat16, 224, 112, "%112", "%113", "%114")
TANDEM_WGMMA_16(__nv_bfloat16, 256, 128, "%128", "%129", "%130")
TANDEM_WGMMA_16(__half, 64, 32, "%32", "%33", "%34")
TANDEM_WGMMA_16(__half, 96, 48, "%48", "%49", "%50")
TANDEM_WGMMA_16(__half, 112, 56, "%56", "%57", "%58")
TANDEM_WGMMA_16(__half, 128, 64, "%64", "%65", "%66")
TANDEM_WGMMA_16(__half, 192, 96, "%96", "%97", "%98")
TANDEM_WGMMA_16(__half, 224, 112, "%112", "%113", "%114")
TANDEM_WGMMA_16(__half, 256, 128, "%128", "%129", "%130")
TANDEM_WGMMA_FLOAT8(__nv_fp8_e4m3, __nv_fp8_e4m3)
TANDEM_WGMMA_FLOAT8(__nv_fp8_e4m3, __nv_fp8_e5m2)
TANDEM_WGMMA_FLOAT8(__nv_fp8_e5m2, __nv_fp8_e4m3)
TANDEM_WGMMA_FLOAT8(__nv_fp8_e5m2, __nv_fp8_e5m2)

}  // namespace tandem::cuda::ptx
