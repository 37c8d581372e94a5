// File: wgmma.cuh
//
// wgmma, a warpgroup's product of two operands in shared memory: 64×N += 64×32B · N×32B, N = 128 or 256, fp32 sums.
// `a` and `b` are the operands' matrix descriptors (Descriptor*). The warpgroup's 64×N sums lie in registers d[N / 2]:
// thread t of warp w holds rows 16w + t/4 (d[4j], d[4j+1]) and 8 more (d[4j+2], d[4j+3]), columns 8j + 2(t%4), +1.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace tandem::cuda::ptx {

__device__ __forceinline__ void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Rows of 128 bytes along K, as a TMA box with 128-byte swizzle leaves them: groups of 8 rows are 1024 bytes apart.
__device__ __forceinline__ uint64_t DescriptorAlongK(uint32_t address) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 16) | ((address & 0x3FFFF) >> 4);
}

// Rows of 64 16-bit elements along N, one row for each K: groups of 8 Ks are 1024 bytes apart, groups of 64 Ns
// `group_bytes`.
__device__ __forceinline__ uint64_t DescriptorAlongN(uint32_t address, uint32_t group_bytes) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{group_bytes >> 4} << 16) |
         ((address & 0x3FFFF) >> 4);
}

#define TANDEM_REGISTERS_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TANDEM_REGISTERS_128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TANDEM_OPERANDS_64(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define TANDEM_OPERANDS_128(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), \
  "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// One overload a number of columns: the instruction's name holds it.
#define TANDEM_WGMMA_16(TYPE, N, COUNT, A, B, P, T)                                                            \
  template <bool kAlongN>                                                                                      \
  __device__ __forceinline__ void Wgmma(TYPE, float (&d)[COUNT], uint64_t a, uint64_t b, int accumulate) {     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TANDEM_NAME_##TYPE " {"                     \
                 TANDEM_REGISTERS_##COUNT "}, " A ", " B ", p, 1, 1, 0, " T ";\n}\n"                           \
                 : TANDEM_OPERANDS_##COUNT(d) : "l"(a), "l"(b), "r"(accumulate), "n"(kAlongN ? 1 : 0));        \
  }
#define TANDEM_WGMMA_8(TYPE, N, COUNT, A, B, P)                                                                \
  template <bool kAlongN>                                                                                      \
  __device__ __forceinline__ void Wgmma(TYPE, float (&d)[COUNT], uint64_t a, uint64_t b, int accumulate) {     \
    static_assert(!kAlongN, "8-bit operands lie along K");                                                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TANDEM_NAME_##TYPE " {"                     \
                 TANDEM_REGISTERS_##COUNT "}, " A ", " B ", p, 1, 1;\n}\n"                                     \
                 : TANDEM_OPERANDS_##COUNT(d) : "l"(a), "l"(b), "r"(accumulate));                              \
  }
#define TANDEM_NAME___nv_bfloat16 "bf16.bf16"
#define TANDEM_NAME___half "f16.f16"
#define TANDEM_NAME___nv_fp8_e4m3 "e4m3.e4m3"
#define TANDEM_NAME___nv_fp8_e5m2 "e5m2.e5m2"

TANDEM_WGMMA_16(__nv_bfloat16, 128, 64, "%64", "%65", "%66", "%67")
TANDEM_WGMMA_16(__nv_bfloat16, 256, 128, "%128", "%129", "%130", "%131")
TANDEM_WGMMA_16(__half, 128, 64, "%64", "%65", "%66", "%67")
TANDEM_WGMMA_16(__half, 256, 128, "%128", "%129", "%130", "%131")
TANDEM_WGMMA_8(__nv_fp8_e4m3, 128, 64, "%64", "%65", "%66")
TANDEM_WGMMA_8(__nv_fp8_e4m3, 256, 128, "%128", "%129", "%130")
TANDEM_WGMMA_8(__nv_fp8_e5m2, 128, 64, "%64", "%65", "%66")
TANDEM_WGMMA_8(__nv_fp8_e5m2, 256, 128, "%128", "%129", "%130")

}  // namespace tandem::cuda::ptx
