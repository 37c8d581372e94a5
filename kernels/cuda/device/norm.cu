// RMSNorm of rows, with a residual added before it: see NormArgs. Sums of squares in fp32, in a fixed order.
// Each value is computed twice, before and behind the sum of the squares. So none is kept in fp32.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/device/dependent_launch.h"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch_status.h"
#include "kernels/cuda/device/norm_manner.h"
#include "kernels/cuda/device/norm_quantize.cuh"
#include "kernels/cuda/device/norm_value.cuh"

namespace tandem::cuda {

Status NormKernelsLoad();

namespace {

constexpr int kMaxThreads = 1024, kMaxWords = 8;
// So few rows do not fill the GPU: each gets as many threads as it has words.
constexpr int64_t kFewRows = 264;
// Threads of a row of many.
constexpr int64_t kManyRowsThreads = 256;

struct NormWork {
  NormLaunch norm;
  bool unrounded;
  NormQuantization quantization;
};

// Sixteen bytes of a row.
template <typename Element>
union RowWord {
  static constexpr int kCount = 16 / sizeof(Element);
  uint4 word;
  Element element[kCount];
  __device__ RowWord() {}
};

// Hides from the compiler where the word comes from. It would keep what it has computed from the word, in
// more registers than there are.
__device__ inline void Forget(uint4* word) {
  asm volatile("" : "+r"(word->x), "+r"(word->y), "+r"(word->z), "+r"(word->w));
}

// The sum of one value of each thread of the block, in all threads.
__device__ inline float SumOfBlock(float value) {
  __shared__ float of_warp[kMaxThreads / 32];
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, lanes);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  value = lane < blockDim.x / 32 ? of_warp[lane] : 0.0f;
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, lanes);
  return value;
}

// The greatest value of the block's threads, in all of them.
__device__ inline uint32_t GreatestOfBlock(uint32_t most) {
  __shared__ uint32_t of_warp[kMaxThreads / 32];
  most = GreatestOfLanes<32>(most);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return GreatestOfLanes<32>(lane < blockDim.x / 32 ? of_warp[lane] : 0);
}

// Quantises the block's row, whose words of 16 bytes its threads have in `value`.
template <typename Element, int kWords>
__device__ inline void QuantizeWords(const NormQuantization& to, float given_scale, unsigned words,
                                     const RowWord<Element> (&value)[kWords]) {
  constexpr int kCount = RowWord<Element>::kCount;
  const int64_t first = int64_t{blockIdx.x} * words;
  float scale = given_scale;
  if (to.static_scale == nullptr && !to.by_blocks) {
    uint32_t most = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if (threadIdx.x + w * blockDim.x < words) most = Greater(most, GreatestOf(value[w].element));
    }
    scale = QuantizationScale(GreatestOfBlock(most));
    if (threadIdx.x == 0) to.scales[int64_t{blockIdx.x} * to.row_pitch] = scale;
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const unsigned at = threadIdx.x + w * blockDim.x;
    const bool has = at < words;
    if (to.by_blocks)
      scale = BlockScale<kCount>(to, has, blockIdx.x, at * kCount, has ? GreatestOf(value[w].element) : 0);
    if (has) StoreQuantizedWord(to, first + at, value[w].element, scale);
  }
}

// Quantises the block's row, whose threads have stored it.
template <typename Element>
__device__ inline void QuantizeElements(const NormQuantization& to, const Element* row, int64_t columns) {
  const int64_t first = int64_t{blockIdx.x} * columns;
  if (!to.by_blocks) {
    float scale = GivenScale(to);
    if (to.static_scale == nullptr) {
      uint32_t most = 0;
      for (int64_t i = threadIdx.x; i < columns; i += blockDim.x)
        most = Greater(most, MagnitudeOf(ToFloat(row[i])));
      scale = QuantizationScale(GreatestOfBlock(most));
      if (threadIdx.x == 0) to.scales[int64_t{blockIdx.x} * to.row_pitch] = scale;
    }
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) StoreQuantized(to, first + i, row[i], scale);
    return;
  }
  __syncthreads();  // a warp reads what others have stored
  for (int64_t begin = int64_t{threadIdx.x / 32} * kBlockColumns; begin < columns;
       begin += int64_t{blockDim.x / 32} * kBlockColumns) {
    const int64_t end = begin + kBlockColumns < columns ? begin + kBlockColumns : columns;
    uint32_t most = 0;
    for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32)
      most = Greater(most, MagnitudeOf(ToFloat(row[i])));
    const float scale = QuantizationScale(GreatestOfLanes<32>(most));
    if (threadIdx.x % 32 == 0)
      to.scales[int64_t{blockIdx.x} * to.row_pitch + begin / kBlockColumns * to.block_pitch] = scale;
    for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) StoreQuantized(to, first + i, row[i], scale);
  }
}

__device__ inline float FactorOf(const NormLaunch& norm, float squares) {
  return rsqrtf(SumOfBlock(squares) / static_cast<float>(norm.columns) + norm.epsilon);
}

// A block a row, which stays in registers: thread t has words t, t + threads, …
template <typename Element, int kWords, bool kQuantizes>
__global__ void __launch_bounds__(kMaxThreads) NormWords(const __grid_constant__ NormWork work) {
  const NormLaunch& norm = work.norm;
  const auto words = static_cast<unsigned>(norm.columns / RowWord<Element>::kCount);
  const int64_t row = int64_t{blockIdx.x} * words;
  constexpr bool kWeightsFirst = kWords <= 4;  // more do not fit the registers
  RowWord<Element> weight[kWords], residual[kWords], value[kWords];
  // The kernel before this one has awaited what wrote these (LaunchNorm).
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const unsigned at = threadIdx.x + w * blockDim.x;
    if (at >= words) continue;
    if constexpr (kWeightsFirst) weight[w].word = static_cast<const uint4*>(norm.weight)[at];
    if (norm.residual != nullptr)
      residual[w].word = __ldcg(static_cast<const uint4*>(norm.residual) + row + at);
  }
  WaitForPrimary();
  TriggerDependents();
  [[maybe_unused]] const float given_scale = kQuantizes ? GivenScale(work.quantization) : 0.0f;
  float squares = 0.0f;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const unsigned at = threadIdx.x + w * blockDim.x;
    if (at < words) value[w].word = __ldcg(static_cast<const uint4*>(norm.sum) + row + at);
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const unsigned at = threadIdx.x + w * blockDim.x;
    if (at >= words) continue;
    RowWord<Element> with_residual;
#pragma unroll
    for (int e = 0; e < RowWord<Element>::kCount; ++e) {
      const float normed = NormedValue(norm, work.unrounded, value[w].element[e], residual[w].element[e]);
      squares = AddSquare(normed, squares);
      FromFloat(normed, &with_residual.element[e]);
    }
    if (norm.residual != nullptr) static_cast<uint4*>(norm.residual_out)[row + at] = with_residual.word;
  }
  const float factor = FactorOf(norm, squares);
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const unsigned at = threadIdx.x + w * blockDim.x;
    if (at >= words) continue;
    Forget(&value[w].word);
    if constexpr (!kWeightsFirst) weight[w].word = static_cast<const uint4*>(norm.weight)[at];
#pragma unroll
    for (int e = 0; e < RowWord<Element>::kCount; ++e) {
      const float normed = NormedValue(norm, work.unrounded, value[w].element[e], residual[w].element[e]);
      FromFloat(normed * factor * ToFloat(weight[w].element[e]), &value[w].element[e]);
    }
    static_cast<uint4*>(norm.out)[row + at] = value[w].word;
  }
  if constexpr (kQuantizes) QuantizeWords(work.quantization, given_scale, words, value);
}

// Rows of any length and place. A thread writes what it alone has read, and reads no more: so the norm may be
// in place.
template <typename Element>
__global__ void __launch_bounds__(kMaxThreads) NormElements(const __grid_constant__ NormWork work) {
  const NormLaunch& norm = work.norm;
  WaitForPrimary();
  TriggerDependents();
  const int64_t row = int64_t{blockIdx.x} * norm.columns;
  const auto* sum = static_cast<const Element*>(norm.sum) + row;
  auto* out = static_cast<Element*>(norm.out) + row;
  const auto* residual = static_cast<const Element*>(norm.residual) + row;
  auto* residual_out = static_cast<Element*>(norm.residual_out) + row;
  const auto value = [&](int64_t i) { return NormedValue(norm, work.unrounded, sum[i], residual[i]); };
  float squares = 0.0f;
  for (int64_t i = threadIdx.x; i < norm.columns; i += blockDim.x) squares = AddSquare(value(i), squares);
  const float factor = FactorOf(norm, squares);
  for (int64_t i = threadIdx.x; i < norm.columns; i += blockDim.x) {
    const float normed = value(i);
    if (norm.residual != nullptr) FromFloat(normed, &residual_out[i]);
    FromFloat(normed * factor * ToFloat(static_cast<const Element*>(norm.weight)[i]), &out[i]);
  }
  if (work.quantization.out != nullptr) QuantizeElements(work.quantization, out, norm.columns);
}

template <typename Element, bool kQuantizes>
const void* WordsKernel(int words) {
  switch (words) {
    case 1: return reinterpret_cast<const void*>(&NormWords<Element, 1, kQuantizes>);
    case 2: return reinterpret_cast<const void*>(&NormWords<Element, 2, kQuantizes>);
    case 4: return reinterpret_cast<const void*>(&NormWords<Element, 4, kQuantizes>);
    default: return reinterpret_cast<const void*>(&NormWords<Element, kMaxWords, kQuantizes>);
  }
}
template <typename Element>
const void* KernelOf(int words, bool quantizes) {
  if (words == 0) return reinterpret_cast<const void*>(&NormElements<Element>);
  return quantizes ? WordsKernel<Element, true>(words) : WordsKernel<Element, false>(words);
}

// `words`: of a thread; 0: the kernel for rows of any length and place.
const void* KernelOf(DType type, int words, bool quantizes) {
  switch (type) {
    case DType::kF32: return KernelOf<float>(words, quantizes);
    case DType::kF16: return KernelOf<__half>(words, quantizes);
    default: return KernelOf<__nv_bfloat16>(words, quantizes);
  }
}

unsigned WholeWarps(int64_t threads) { return static_cast<unsigned>((threads + 31) / 32 * 32); }

}  // namespace

Status LaunchNorm(const NormLaunch& norm, const NormManner& manner, const NormQuantization& quantization,
                  CUstream_st* stream) {
  if (norm.rows == 0 || norm.columns == 0) return Status::Ok();
  if (norm.rows > INT32_MAX) return InvalidArgument("a norm of more than 2^31 rows");
  const auto type = static_cast<DType>(norm.type);
  const auto in_word = static_cast<int64_t>(16 / DTypeBytes(type));
  uintptr_t addresses = 0;
  for (const void* at : {norm.sum, norm.weight, norm.residual, static_cast<const void*>(norm.residual_out),
                         static_cast<const void*>(norm.out), static_cast<const void*>(quantization.out)}) {
    addresses |= reinterpret_cast<uintptr_t>(at);
  }
  const int64_t in_row = norm.columns / in_word;
  const auto rows = static_cast<unsigned>(norm.rows);
  const bool in_words = norm.columns % in_word == 0 && in_row <= int64_t{kMaxThreads} * kMaxWords;
  if (manner.fixed_order && in_words && addresses % 16 != 0) {
    return InvalidArgument(
        "determinism = batch: a norm's operands must lie at multiples of 16 bytes; elsewhere its squares "
        "would be added in another order");
  }
  const NormWork work = {norm, manner.unrounded, quantization};
  const bool quantizes = quantization.out != nullptr;
  if (addresses % 16 != 0 || !in_words) {
    const unsigned threads = WholeWarps(std::min<int64_t>(norm.columns, kMaxThreads));
    return LaunchDependent("NormElements", KernelOf(type, 0, quantizes), rows, threads, 0, &work, stream);
  }
  int64_t most = norm.rows <= kFewRows ? kMaxThreads : kManyRowsThreads;
  if (manner.fixed_order) most = kFixedNormThreads;
  int words = 1;
  while (words < kMaxWords && in_row > most * words) words *= 2;
  return LaunchDependent("NormWords", KernelOf(type, words, quantizes), rows,
                         WholeWarps((in_row + words - 1) / words), 0, &work, stream);
}

Status LaunchNorm(const NormLaunch& norm, CUstream_st* stream) { return LaunchNorm(norm, {}, {}, stream); }

Status NormKernelsLoad() {
  for (DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (int words : {0, 1, 2, 4, kMaxWords}) {
      for (const bool quantizes : {false, true}) {
        TANDEM_RETURN_IF_ERROR(
            LoadKernel(words > 0 ? "NormWords" : "NormElements", KernelOf(type, words, quantizes)));
      }
    }
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
