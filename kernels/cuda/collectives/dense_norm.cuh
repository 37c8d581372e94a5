// File: dense_norm.cuh
//
// The kernel of a sum by dense packets with an RMSNorm behind it. A block has whole rows: it sends them, adds
// what comes from the peers, and norms a row once its threads have added up their squares. (TensorRT-LLM's
// fused all-reduce gives each row to a cluster of blocks.)
#pragma once

#include "kernels/cuda/collectives/client_norm.h"
#include "kernels/cuda/collectives/dense_packets.cuh"
#include "kernels/cuda/device/norm_quantize.cuh"
#include "kernels/cuda/device/norm_value.cuh"

namespace tandem::cuda {

// Over all threads of the block that move data: the sum of `squares`, and whether any thread `gives_up`. The
// block's last warp takes no part, so the barrier is a named one. `of_warp`: another one for each of two
// calls that follow one another.
__device__ inline float SumOfMovers(unsigned movers, float squares, bool gives_up, float* of_warp,
                                    bool* any_gives_up) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(0xFFFFFFFF, squares, lanes);
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) of_warp[threadIdx.x / 32] = squares;
  uint32_t any = 0;
  asm volatile(
      "{ .reg .pred mine, all; setp.ne.u32 mine, %1, 0; barrier.cta.red.or.pred all, 1, %2, mine; "
      "selp.u32 %0, 1, 0, all; }"
      : "=r"(any)
      : "r"(gives_up ? 1u : 0u), "r"(movers)
      : "memory");
  *any_gives_up = any != 0;
  float sum = lane < movers / 32 ? of_warp[lane] : 0.0f;
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
  return sum;
}

// The greatest value of all threads of the block that move data. Between two calls lies a SumOfMovers.
__device__ inline uint32_t GreatestOfMovers(unsigned movers, uint32_t most, uint32_t* of_warp) {
  most = GreatestOfLanes<32>(most);
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) of_warp[threadIdx.x / 32] = most;
  asm volatile("barrier.cta.sync 1, %0;" ::"r"(movers) : "memory");
  return GreatestOfLanes<32>(lane < movers / 32 ? of_warp[lane] : 0);
}

template <typename Element, int kMax, int kWords, typename TestHooks, bool kQuantizes>
class DenseNorm : private DenseExchange<Element, kMax, PacketShape::kSum, TestHooks, Alignment::k16B> {
  using Base = DenseExchange<Element, kMax, PacketShape::kSum, TestHooks, Alignment::k16B>;
  using Elements = Word16<Element>;

 public:
  __device__ DenseNorm(const ClientNormLaunch& launch, const ClientLaunchContext& context)
      : Base(launch.sum, context),
        norm_(launch.norm),
        quantization_(launch.quantization),
        given_scale_(kQuantizes ? GivenScale(launch.quantization) : 0.0f),
        unrounded_(launch.manner.unrounded),
        movers_(blockDim.x - kHandshakeThreads),
        row_words_(static_cast<unsigned>(launch.norm.columns / Elements::kCount)) {}

  // Returns false in a thread that has given up. The last warp of each block moves no data. `failed`: as in
  // ExchangePackets. Threads that disagree about it would miss one another at a barrier, so all look at it
  // together.
  __device__ bool Run(float (*of_warp)[kCollectiveThreads / 32], bool failed) const {
    const bool moves = threadIdx.x < movers_;
    Elements weight[kWords];
    uint4 words[kWords];
    if (moves) {
      LoadRow(blockIdx.x, words);
      ForEachWord([&](int w, unsigned at) { weight[w].word = static_cast<const uint4*>(norm_.weight)[at]; });
    }
    if (__syncthreads_or(failed)) return false;
    if (!moves) return blockIdx.x != 0 || this->Handshake(static_cast<int>(threadIdx.x - movers_));
    TestHooks::BeforeSignal(this->context_.value(), 0);
    for (int64_t row = blockIdx.x; row < norm_.rows; row += gridDim.x) {
      if (row != blockIdx.x) LoadRow(row, words);
      SendRow(row, words);
    }
    int turn = 0;
    for (int64_t row = blockIdx.x; row < norm_.rows; row += gridDim.x, turn ^= 1) {
      if (!NormRow(row, weight, of_warp[turn])) return false;
    }
    return true;
  }

 private:
  // Calls visit(w, index) for the words of a row that this thread has.
  template <typename Visit>
  __device__ void ForEachWord(const Visit& visit) const {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const unsigned at = threadIdx.x + w * movers_;
      if (at < row_words_) visit(w, at);
    }
  }

  __device__ void LoadRow(int64_t row, uint4 (&words)[kWords]) const {
    const auto* source =
        static_cast<const uint4*>(this->launch_.source[this->launch_.rank]) + row * row_words_;
    ForEachWord([&](int w, unsigned at) { words[w] = source[at]; });
  }
  __device__ void SendRow(int64_t row, const uint4 (&words)[kWords]) const {
    const auto& launch = this->launch_;
    const int64_t first = row * row_words_;
    ForEachWord([&](int w, unsigned at) {
      for (int j = 1; j < launch.world; ++j)
        this->Send(this->Slot(this->Peer(j), launch.rank, 0) + first + at, words[w]);
    });
  }

  __device__ bool NormRow(int64_t row, const Elements (&weight)[kWords], float* of_warp) const {
    const auto& launch = this->launch_;
    const int rank = launch.rank;
    const int64_t first = row * row_words_;
    Elements mine[kWords], residual[kWords], value[kWords];
    ForEachWord([&](int w, unsigned at) {
      mine[w].word = static_cast<const uint4*>(launch.source[rank])[first + at];
      if (norm_.residual != nullptr) residual[w].word = static_cast<const uint4*>(norm_.residual)[first + at];
    });
    Packet packets[kWords][kMax];
    const auto wanted = [&](int w, int s) {
      return s < launch.world && s != rank && threadIdx.x + w * movers_ < row_words_;
    };
    const bool come = this->template Take<kWords>(0, first + threadIdx.x, movers_, wanted, packets);
    // All that is sent here has been sent, by kernels that have all begun.
    if (row + gridDim.x >= norm_.rows) TriggerDependents();
    float squares = 0.0f;
    ForEachWord([&](int w, unsigned at) {
      Elements terms[kMax];
#pragma unroll
      for (int s = 0; s < kMax; ++s) terms[s].word = s == rank ? mine[w].word : this->DataOf(packets[w][s]);
      value[w] = this->SumOf(terms);
      Elements with_residual;
#pragma unroll
      for (int e = 0; e < Elements::kCount; ++e) {
        const float normed = NormedValue(norm_, unrounded_, value[w].element[e], residual[w].element[e]);
        squares = AddSquare(normed, squares);
        FromFloat(normed, &with_residual.element[e]);
      }
      if (come && norm_.residual != nullptr)
        static_cast<uint4*>(norm_.residual_out)[first + at] = with_residual.word;
    });
    bool given_up = false;
    const float sum = SumOfMovers(movers_, squares, !come, of_warp, &given_up);
    if (given_up) return false;
    const float factor = rsqrtf(sum / static_cast<float>(norm_.columns) + norm_.epsilon);
    ForEachWord([&](int w, unsigned at) {
#pragma unroll
      for (int e = 0; e < Elements::kCount; ++e) {
        const float normed = NormedValue(norm_, unrounded_, value[w].element[e], residual[w].element[e]);
        FromFloat(normed * factor * ToFloat(weight[w].element[e]), &value[w].element[e]);
      }
      static_cast<uint4*>(norm_.out)[first + at] = value[w].word;
    });
    if constexpr (kQuantizes) Quantize(row, value);
    return true;
  }

  // Quantises the row, whose words the block's threads have in `value`.
  __device__ void Quantize(int64_t row, const Elements (&value)[kWords]) const {
    __shared__ uint32_t of_warp[kCollectiveThreads / 32];
    const NormQuantization& to = quantization_;
    float scale = given_scale_;
    if (to.static_scale == nullptr && !to.by_blocks) {
      uint32_t most = 0;
      ForEachWord([&](int w, unsigned) { most = Greater(most, GreatestOf(value[w].element)); });
      scale = QuantizationScale(GreatestOfMovers(movers_, most, of_warp));
      if (threadIdx.x == 0) to.scales[row * to.row_pitch] = scale;
    }
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const unsigned at = threadIdx.x + w * movers_;
      const bool has = at < row_words_;
      if (to.by_blocks) {
        const uint32_t most = has ? GreatestOf(value[w].element) : 0;
        scale = BlockScale<Elements::kCount>(to, has, row, at * Elements::kCount, most);
      }
      if (has) StoreQuantizedWord(to, row * row_words_ + at, value[w].element, scale);
    }
  }

  const NormLaunch& norm_;
  const NormQuantization& quantization_;
  const float given_scale_;  // loaded before the exchange
  const bool unrounded_;
  const unsigned movers_, row_words_;
};

template <typename Element, int kMax, int kWords, typename TestHooks, bool kQuantizes>
__global__ void __launch_bounds__(kCollectiveThreads + kHandshakeThreads)
    RunClientNorm(const __grid_constant__ ClientNormLaunch launch) {
  __shared__ float of_warp[2][kCollectiveThreads / 32];
  WaitForPrimary();
  const ClientLaunchContext context(launch.sum.group_state);
  const DenseNorm<Element, kMax, kWords, TestHooks, kQuantizes> norm(launch, context);
  if (__syncthreads_or(!norm.Run(of_warp, context.HasFailed()))) return;
  TriggerDependents();
  context.ReportProgress();
}

// The kernel for a launch's type, words and world size; null where there is none. Rows of f32 have none that
// quantises: models hardly ask for it, so that a second kernel serves them.
template <typename TestHooks, bool kQuantizes>
struct DenseNormKernels {
  using Kernel = void (*)(const ClientNormLaunch);
  template <typename Element, int kWords>
  static Kernel OfWorld(int world) {
    if (world <= 2) return &RunClientNorm<Element, 2, kWords, TestHooks, kQuantizes>;
    if (world <= 4) return &RunClientNorm<Element, 4, kWords, TestHooks, kQuantizes>;
    if constexpr (kWords > 2) {
      return nullptr;  // their packets do not fit the registers
    } else {
      return &RunClientNorm<Element, 8, kWords, TestHooks, kQuantizes>;
    }
  }
  template <typename Element>
  static Kernel OfWords(int words, int world) {
    if (words == 1) return OfWorld<Element, 1>(world);
    return words == 2 ? OfWorld<Element, 2>(world) : OfWorld<Element, 4>(world);
  }
  static Kernel Of(DType type, int words, int world) {
    if constexpr (!kQuantizes) {
      if (type == DType::kF32) return OfWords<float>(words, world);
    }
    switch (type) {
      case DType::kF16: return OfWords<__half>(words, world);
      case DType::kBf16: return OfWords<__nv_bfloat16>(words, world);
      default: return nullptr;
    }
  }
};

}  // namespace tandem::cuda
