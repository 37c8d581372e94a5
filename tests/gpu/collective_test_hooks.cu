// The product's kernel templates with test hooks, for u32 sums of up to 8 ranks.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/dense_packets.cuh"
#include "kernels/cuda/device/launch_status.h"
#include "tests/gpu/collective_test_hooks.h"

namespace tandem::cuda {
namespace {

constexpr uint32_t kMaxDelayNs = 20'000;

__host__ __device__ uint32_t Hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return static_cast<uint32_t>(x ^ (x >> 31));
}

template <bool kFlagFirst, bool kStale>
struct DelayHooks {
  static constexpr bool kFlagBeforeData = kFlagFirst;
  __device__ static bool HasReached(uint64_t launch_number, uint64_t seen) {
    return NoTestHooks::HasReached(launch_number - (kStale ? 1 : 0), seen);
  }
  // The other launch of the same half.
  __device__ static bool IsOf(uint64_t launch_number, uint64_t seen) {
    return seen == launch_number || (kStale && seen + 2 == launch_number);
  }
  // One block in four pauses, in a random launch, for a random time.
  __device__ static void BeforeSignal(uint64_t launch_number, int word) {
    uint64_t timer = GlobalTimerNs();
    uint32_t hash =
        Hash(launch_number * 8191 + blockIdx.x * 127 + static_cast<uint64_t>(word) + (timer << 20));
    if (hash % 4 != 0) return;
    Pause(timer, (hash >> 8) % kMaxDelayNs);
  }
  // Between a flag that comes too early and its data, on one block in four, for long enough that a reader who
  // has seen the flag reads what lay there before.
  __device__ static void AfterEarlySignal(uint64_t launch_number) {
    if (Hash(launch_number * 8191 + blockIdx.x * 127) % 4 == 0) Pause(GlobalTimerNs(), kMaxDelayNs);
  }
  __device__ static void Pause(uint64_t now, uint64_t ns) {
    while (GlobalTimerNs() < now + ns) {
    }
  }
};

__device__ uint32_t Value(int rank, uint64_t launch_number, int64_t i) {
  return Hash((launch_number * 8 + static_cast<uint64_t>(rank)) * 0x9E3779B97F4A7C15ull +
              static_cast<uint64_t>(i));
}

__global__ void Fill(uint32_t* data, int64_t count, int rank, uint64_t launch_number) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    data[i] = Value(rank, launch_number, i);
  }
}

// A rank's fill, as an fp32 number.
__device__ float FloatValue(int rank, uint64_t launch_number, int64_t i) {
  const uint32_t value = Value(rank, launch_number, i);
  return value % 1021 == 0 ? __uint_as_float(0xFFFFFFFF) : static_cast<float>(value & 0xFFFF) - 1000;
}

__global__ void FillNext(uint32_t* data, int64_t count, int rank, const uint64_t* counter, Moved moved) {
  const uint64_t launch_number = *counter + 1;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    data[i] = moved == Moved::kSumOfF32 ? __float_as_uint(FloatValue(rank, launch_number, i))
                                        : Value(rank, launch_number, i);
  }
}

// Equal, or both not a number.
__device__ bool IsFloatSum(uint32_t bits, int64_t i, int world, uint64_t launch_number) {
  const float got = __uint_as_float(bits);
  float sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += FloatValue(rank, launch_number, i);
  return isnan(sum) ? isnan(got) : got == sum;
}

__global__ void CheckSum(const uint32_t* data, int64_t count, int64_t first, int world,
                         uint64_t launch_number, uint64_t* errors) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t sum = 0;
    for (int rank = 0; rank < world; ++rank) sum += Value(rank, launch_number, first + i);
    if (data[i] != sum) atomicAdd(reinterpret_cast<unsigned long long*>(errors), 1ull);
  }
}

__device__ bool IsRight(const uint32_t* data, int64_t i, int64_t count, int world, uint64_t launch_number,
                        Moved moved) {
  if (moved == Moved::kSumOfF32) return IsFloatSum(data[i], i, world, launch_number);
  bool gathered = true;
  uint32_t sum = 0;
  for (int rank = 0; rank < world; ++rank) {
    const uint32_t value = Value(rank, launch_number, i);
    sum += value;
    if (moved == Moved::kGathered) gathered = gathered && data[rank * count + i] == value;
  }
  return moved == Moved::kGathered ? gathered : data[i] == sum;
}

__global__ void CheckLast(const uint32_t* data, int64_t count, int world, const uint64_t* counter,
                          Moved moved, uint64_t* errors) {
  const uint64_t launch_number = *counter;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    if (!IsRight(data, i, count, world, launch_number, moved))
      atomicAdd(reinterpret_cast<unsigned long long*>(errors), 1ull);
  }
}

using Right = DelayHooks<false, false>;
using FlagFirst = DelayHooks<true, false>;
using Stale = DelayHooks<false, true>;
// The launch's number in words that hold it above a tag.
struct StaleLaunch : Right {
  static constexpr uint64_t kOne = uint64_t{1} << kLaunchTagBits;
  __device__ static bool HasReached(uint64_t value, uint64_t seen) {
    return NoTestHooks::HasReached(value - kOne, seen);
  }
  __device__ static bool IsOf(uint64_t value, uint64_t seen) {
    return seen == value || seen + 2 * kOne == value;
  }
};

template <typename Launch, typename Kernel>
Status Run(Kernel kernel, const Launch& launch, CUstream_st* stream) {
  kernel<<<static_cast<unsigned>(launch.blocks), kCollectiveThreads, 0, stream>>>(launch);
  return LaunchStatus("a kernel with hooks");
}

template <typename TestHooks>
Status RunClientLaunch(const ClientKernelLaunch& launch, CUstream_st* stream) {
  if (const auto* phases = std::get_if<ClientPhasesLaunch>(&launch)) {
    RunClientPhases<uint32_t, 8, true, TestHooks>
        <<<static_cast<unsigned>(phases->phases.blocks), kCollectiveThreads, 0, stream>>>(*phases);
    return LaunchStatus("a kernel with hooks");
  }
  const auto& packets = std::get<ClientPacketsLaunch>(launch);
  const auto blocks = static_cast<unsigned>(packets.packets.blocks);
  if (packets.dense) {
    DenseKernels<TestHooks>::Of(
        DType::kF32, packets.packets.shape,
        packets.packets.world)<<<blocks, kCollectiveThreads + kHandshakeThreads, 0, stream>>>(packets);
    return LaunchStatus("a kernel with hooks");
  }
  if (packets.packets.shape == PacketShape::kTwoShot) {
    RunClientPackets<uint32_t, 8, PacketShape::kTwoShot, TestHooks>
        <<<blocks, kCollectiveThreads, 0, stream>>>(packets);
  } else {
    RunClientPackets<uint32_t, 8, PacketShape::kSum, TestHooks>
        <<<blocks, kCollectiveThreads, 0, stream>>>(packets);
  }
  return LaunchStatus("a kernel with hooks");
}

template <typename TestHooks>
Status LoadClientTestHooks() {
  TANDEM_RETURN_IF_ERROR(LoadKernel(
      "a kernel with hooks", reinterpret_cast<const void*>(&RunClientPhases<uint32_t, 8, true, TestHooks>)));
  TANDEM_RETURN_IF_ERROR(LoadKernel(
      "a kernel with hooks",
      reinterpret_cast<const void*>(&RunClientPackets<uint32_t, 8, PacketShape::kSum, TestHooks>)));
  for (const PacketShape shape : {PacketShape::kSum, PacketShape::kGather, PacketShape::kTwoShot}) {
    for (const int world : {2, 4, 8}) {
      TANDEM_RETURN_IF_ERROR(
          LoadKernel("a kernel with hooks",
                     reinterpret_cast<const void*>(DenseKernels<TestHooks>::Of(DType::kF32, shape, world))));
    }
  }
  return LoadKernel(
      "a kernel with hooks",
      reinterpret_cast<const void*>(&RunClientPackets<uint32_t, 8, PacketShape::kTwoShot, TestHooks>));
}

template <typename TestHooks>
PacketKernels<NoTestHooks>::Kernel PacketTestHooks(PacketShape shape) {
  if (shape == PacketShape::kTwoShot) return &RunPackets<uint32_t, 8, PacketShape::kTwoShot, TestHooks>;
  return &RunPackets<uint32_t, 8, PacketShape::kSum, TestHooks>;
}

}  // namespace

Status LaunchPhasesWithDelays(const PhasesLaunch& launch, Fault fault, CUstream_st* stream) {
  switch (fault) {
    case Fault::kNone: return Run(&RunPhases<uint32_t, 8, true, Right>, launch, stream);
    case Fault::kFlagBeforeData: return Run(&RunPhases<uint32_t, 8, true, FlagFirst>, launch, stream);
    case Fault::kStaleLaunchNumber: return Run(&RunPhases<uint32_t, 8, true, Stale>, launch, stream);
  }
  return InvalidArgument("fault");
}

Status LaunchPacketsWithDelays(const PacketsLaunch& launch, Fault fault, CUstream_st* stream) {
  if (fault == Fault::kStaleLaunchNumber) return Run(PacketTestHooks<Stale>(launch.shape), launch, stream);
  return Run(PacketTestHooks<Right>(launch.shape), launch, stream);
}

Status LaunchClientWithDelays(const ClientKernelLaunch& launch, Fault fault, CUstream_st* stream) {
  switch (fault) {
    case Fault::kNone: return RunClientLaunch<Right>(launch, stream);
    case Fault::kFlagBeforeData: return RunClientLaunch<FlagFirst>(launch, stream);
    case Fault::kStaleLaunchNumber: return RunClientLaunch<StaleLaunch>(launch, stream);
  }
  return InvalidArgument("fault");
}

Status LaunchFillNext(uint32_t* data, int64_t count, int rank, const uint64_t* counter, Moved moved,
                      CUstream_st* stream) {
  FillNext<<<32, 256, 0, stream>>>(data, count, rank, counter, moved);
  return LaunchStatus("FillNext");
}

Status LaunchCheckLast(const uint32_t* data, int64_t count, int world, const uint64_t* counter, Moved moved,
                       uint64_t* errors, CUstream_st* stream) {
  CheckLast<<<32, 256, 0, stream>>>(data, count, world, counter, moved, errors);
  return LaunchStatus("CheckLast");
}

Status LaunchFill(uint32_t* data, int64_t count, int rank, uint64_t launch_number, CUstream_st* stream) {
  Fill<<<32, 256, 0, stream>>>(data, count, rank, launch_number);
  return LaunchStatus("Fill");
}

Status LaunchCheckSum(const uint32_t* data, int64_t count, int64_t first, int world, uint64_t launch_number,
                      uint64_t* errors, CUstream_st* stream) {
  CheckSum<<<32, 256, 0, stream>>>(data, count, first, world, launch_number, errors);
  return LaunchStatus("CheckSum");
}

Status LoadTestHooks() {
  TANDEM_RETURN_IF_ERROR(LoadClientTestHooks<Right>());
  TANDEM_RETURN_IF_ERROR(LoadClientTestHooks<FlagFirst>());
  TANDEM_RETURN_IF_ERROR(LoadClientTestHooks<StaleLaunch>());
  for (const void* kernel :
       {reinterpret_cast<const void*>(&FillNext), reinterpret_cast<const void*>(&CheckLast)}) {
    TANDEM_RETURN_IF_ERROR(LoadKernel("a kernel with hooks", kernel));
  }
  for (const void* kernel : {reinterpret_cast<const void*>(&Fill), reinterpret_cast<const void*>(&CheckSum),
                             reinterpret_cast<const void*>(&RunPhases<uint32_t, 8, true, Right>),
                             reinterpret_cast<const void*>(&RunPhases<uint32_t, 8, true, FlagFirst>),
                             reinterpret_cast<const void*>(&RunPhases<uint32_t, 8, true, Stale>),
                             reinterpret_cast<const void*>(PacketTestHooks<Right>(PacketShape::kSum)),
                             reinterpret_cast<const void*>(PacketTestHooks<Right>(PacketShape::kTwoShot)),
                             reinterpret_cast<const void*>(PacketTestHooks<Stale>(PacketShape::kSum)),
                             reinterpret_cast<const void*>(PacketTestHooks<Stale>(PacketShape::kTwoShot))}) {
    TANDEM_RETURN_IF_ERROR(LoadKernel("a kernel with hooks", kernel));
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
