// File: ptx.cuh
//
// Hopper's instructions that CUDA C++ does not name: barriers of shared memory, TMA, fences between proxies,
// words that other GPUs and copy engines write. One function an instruction; PTX ISA 8.x has their meaning.
//
// Addresses of shared memory are 32-bit shared-window addresses. "Cluster" forms take such an address mapped
// to a CTA.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tandem::cuda::ptx {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The index of this thread's warpgroup in the block. The compiler does not know that threadIdx.x >> 7 is
// the same in all threads of a warp, and would take values derived from it, such as descriptors, through
// vector registers and votes before each product.
__device__ __forceinline__ int Warpgroup() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 7, 0); }
// The index of this thread's warp, likewise.
__device__ __forceinline__ int Warp() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0); }

// True in one thread of a warp that has come together here, always the same. Unlike of `lane == 0` the
// compiler knows of it that it is one thread: what only one may issue, such as TMA, needs no loop over the
// threads that are there.
__device__ __forceinline__ bool ElectOne() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// --- clusters ---

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all CTAs of the cluster.
__device__ __forceinline__ void ClusterBarrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same where nothing but barriers that have been initialised is to be seen by the others, which
// BarrierInitFence sees to: what this one leaves out is a fence for all memory, of some hundred nanoseconds.
__device__ __forceinline__ void ClusterBarrierAfterInit() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of `address`'s twin in CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t MapToCta(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Stores into a CTA of the cluster, and counts the four bytes at a barrier there when they are to be seen: no
// fence.
__device__ __forceinline__ void StoreSharedAsync(uint32_t mapped, int value, uint32_t mapped_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.s32 [%0], %1, [%2];" ::"r"(mapped),
               "r"(value), "r"(mapped_barrier)
               : "memory");
}

// --- barriers in shared memory ---

__device__ __forceinline__ void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the barriers' initialisation visible to the cluster and to TMA.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// On a barrier of any CTA of the cluster; publishes nothing. A release of cluster scope costs a fence:
// hundreds of nanoseconds.
__device__ __forceinline__ void ArriveRemote(uint32_t mapped) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}

// The same, and publishes what the thread has written.
__device__ __forceinline__ void ArriveCluster(uint32_t mapped) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}

__device__ __forceinline__ void ArriveExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Until the phase of parity `parity` is complete.
__device__ __forceinline__ void Wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether it is, at once or after the little while that the hardware waits.
__device__ __forceinline__ bool Test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// The same for what other CTAs of the cluster wrote before they arrived.
__device__ __forceinline__ void WaitCluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether `mine` holds of any of the 128 threads that meet at `barrier`, one of the CTA's sixteen.
__device__ __forceinline__ bool AnyOfWarpgroup(int barrier, bool mine) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.b32 mine, %2, 0;\n"
      "barrier.cta.red.or.pred any, %1, 128, mine;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(barrier), "r"(mine ? 1 : 0)
      : "memory");
  return any != 0;
}

// Brings a line into L1; nobody waits for it.
__device__ __forceinline__ void Touch(const float* address) {
  [[maybe_unused]] float ignored;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(ignored) : "l"(address));
}

// --- TMA ---

__device__ __forceinline__ void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads the box at (x, y, z), x innermost, and counts its bytes on `barrier`.
__device__ __forceinline__ void Load(const CUtensorMap* map, uint32_t destination, uint32_t barrier, int x,
                                     int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// The same into the CTAs of `mask`, at the same place in each, counted on each one's own barrier.
__device__ __forceinline__ void LoadMulticast(const CUtensorMap* map, uint32_t destination, uint32_t barrier,
                                              int x, int y, int z, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(mask)
      : "memory");
}

// `bytes`, a multiple of 16, that lie one behind the other.
__device__ __forceinline__ void LoadBytes(const void* from, uint32_t to, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Brings `bytes`, a multiple of 16, into L2; nobody waits for them.
__device__ __forceinline__ void Prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Stores the box; the part outside the tensor is dropped. Belongs to the thread's current bulk group.
__device__ __forceinline__ void Store(const CUtensorMap* map, uint32_t source, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(source), "r"(x), "r"(y), "r"(z)
               : "memory");
}

__device__ __forceinline__ void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most `kPending` of the thread's groups have yet to read their shared memory.
template <int kPending>
__device__ __forceinline__ void WaitStoresRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Until all of the thread's stores are complete: written, not only read.
__device__ __forceinline__ void WaitStoresComplete() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// --- fences and words ---

// Between ordinary accesses and TMA's, either way.
__device__ __forceinline__ void ProxyFence() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void ProxyFenceShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void SystemFence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Returns the value before. Unlike atomicAdd, the threads of a warp do not combine their additions, so no
// thread waits here.
__device__ __forceinline__ uint32_t Add(uint32_t* word, uint32_t value) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(word), "r"(value)
               : "memory");
  return before;
}

__device__ __forceinline__ uint64_t LoadAcquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t LoadRelaxed(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ void StoreRelease(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ float4 LoadFour(uint32_t address) {
  float4 four;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(address)
               : "memory");
  return four;
}

// For words of this GPU alone.
__device__ __forceinline__ uint32_t LoadAcquireGpu(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ void StoreReleaseGpu(uint32_t* word, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ uint64_t GlobalTimer() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// --- matrices of 8×8 16-bit elements between registers and shared memory ---

__device__ __forceinline__ void StoreMatrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                              uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ void LoadMatrices(uint32_t address, uint32_t (&out)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// --- pairs of floats in shared memory, at multiples of 8 bytes ---

__device__ __forceinline__ void StorePair(uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ float2 LoadPair(uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tandem::cuda::ptx
