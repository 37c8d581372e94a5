// File: skinny_launch_context.cuh
//
// How the skinny kernel knows its launch and its peers, by its parameters' type. `SkinnyParams`: an engine
// has started the launch, and all that differs from launch to launch is a parameter. client_skinny.cuh has
// the same functions for a client's launches.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/kernel/guard.cuh"
#include "kernels/cuda/skinny/skinny_tile.cuh"

namespace tandem::cuda {

// The first thing in the kernel, by all threads; true in one of them: the launch has been cancelled.
__device__ __forceinline__ bool BeginLaunch(const SkinnyParams& params) {
  return FoundGuardRaised(params.guard_word, params.guard_value);
}
// The last thing.
__device__ __forceinline__ void EndLaunch(const SkinnyParams& /*params*/) {}

// The value of this launch's words.
__device__ __forceinline__ uint64_t WordValue(const SkinnyParams& params) { return params.launch_number; }
// The exchange area of `rank` that this launch uses.
__device__ __forceinline__ std::byte* AreaOf(const SkinnyParams& params, int rank) {
  return params.area[rank];
}
// Puts the map of the peers' shards in this launch's half of workspace in place of that of even launches.
__device__ __forceinline__ void ChooseHalf(const SkinnyParams& /*params*/, const CUtensorMap** /*map*/) {}
__device__ __forceinline__ void PrefetchOthers(const SkinnyParams& params) {
  ptx::PrefetchMap(&params.others);
}
// By unit: this launch's stamp once this rank has pushed it.
__device__ __forceinline__ uint64_t* PushedUnits(const SkinnyParams& params) { return params.pushed; }
// The stamp of this launch. Several groups, which count their launch numbers separately, share the state of a
// lane.
__device__ __forceinline__ uint64_t PushStamp(const SkinnyParams& params) {
  return params.launch_number * 0x9E3779B97F4A7C15ull ^ reinterpret_cast<uint64_t>(params.area[params.rank]);
}
// True once a wait of this CTA has ended without its word: the CTA publishes nothing any more. An engine
// breaks a group in two steps, which makes harmless what its kernels write then.
__device__ __forceinline__ bool HasGivenUp(const SkinnyParams& /*params*/) { return false; }

}  // namespace tandem::cuda
