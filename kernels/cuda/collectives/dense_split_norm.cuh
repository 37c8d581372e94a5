// File: dense_split_norm.cuh
//
// The same as dense_norm.cuh for few rows: the blocks of a cluster share one. They send it sooner than one
// block would. They add up the row's squares through shared memory.
#pragma once

#include "kernels/cuda/collectives/client_norm.h"
#include "kernels/cuda/collectives/dense_packets.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/norm_quantize.cuh"
#include "kernels/cuda/device/norm_value.cuh"

namespace tandem::cuda {

// The largest cluster that every GPU allows.
inline constexpr unsigned kMaxNormCluster = 8;
inline constexpr unsigned kMaxNormWarps = kCollectiveThreads / 32;

// A thread's part of a row: one word of 16 bytes, or none.
template <typename Element>
struct NormWord {
  bool has;
  unsigned in_row;
  int64_t at;  // among all words of the sum
  Word16<Element> mine, weight, residual;
};

template <typename Element, int kMax, typename TestHooks, bool kQuantizes>
class DenseSplitNorm : private DenseExchange<Element, kMax, PacketShape::kSum, TestHooks, Alignment::k16B> {
  using Base = DenseExchange<Element, kMax, PacketShape::kSum, TestHooks, Alignment::k16B>;
  using RowWord = NormWord<Element>;

 public:
  __device__ DenseSplitNorm(const ClientNormLaunch& launch, const ClientLaunchContext& context)
      : Base(launch.sum, context),
        norm_(launch.norm),
        quantization_(launch.quantization),
        given_scale_(kQuantizes ? GivenScale(launch.quantization) : 0.0f),
        unrounded_(launch.manner.unrounded),
        movers_(blockDim.x - kHandshakeThreads) {}

  // Where this thread's word lies, by the parameters and the thread's place.
  static __device__ RowWord Place(const NormLaunch& norm) {
    const auto row_words = static_cast<unsigned>(norm.columns / Word16<Element>::kCount);
    const unsigned cluster = ClusterBlocks(), part = (row_words + cluster - 1) / cluster;
    const unsigned in_row = ClusterRank() * part + threadIdx.x;
    RowWord word;
    word.has = threadIdx.x < part && in_row < row_words;
    word.in_row = in_row;
    word.at = static_cast<int64_t>(blockIdx.x / cluster) * row_words + in_row;
    return word;
  }

  // Loads the words while the launch's number is.
  static __device__ void Load(const ClientNormLaunch& launch, RowWord* word) {
    if (!word->has) return;
    const PacketsLaunch& sum = launch.sum.packets;
    word->mine.word = static_cast<const uint4*>(sum.source[sum.rank])[word->at];
    if (launch.norm.residual != nullptr)
      word->residual.word = static_cast<const uint4*>(launch.norm.residual)[word->at];
    word->weight.word = static_cast<const uint4*>(launch.norm.weight)[word->in_row];
  }

  // Returns false in a thread that has given up. All threads have arrived at the cluster's barrier once. No
  // block may end before the others have written to it, so that all pass the barrier even if the launch
  // `failed`.
  __device__ bool Run(RowWord word, float (&partial)[kMaxNormCluster * kMaxNormWarps], bool failed) const {
    const bool ends = __syncthreads_or(failed);
    if (threadIdx.x >= movers_) {
      AwaitCluster();
      ArriveCluster();
      const bool met = ends || blockIdx.x != 0 || this->Handshake(static_cast<int>(threadIdx.x - movers_));
      AwaitCluster();
      if (MakesRowScales()) {
        ArriveCluster();
        AwaitCluster();
      }
      return met && !ends;
    }
    Word16<Element> value;
    const float squares = ends ? kGivenUp : SumUp(word, &value);
    const float sum = SumOfCluster(squares, partial);
    const bool normed = sum >= 0 || isnan(sum);
    if (normed && word.has) NormAndStore(word, sum, &value);
    if constexpr (kQuantizes) Quantize(word, normed, value);
    return normed;
  }

 private:
  static constexpr float kGivenUp = -1.0f;  // squares are no less than 0, or not a number

  // Norms the thread's word of a row whose squares have this sum.
  __device__ void NormAndStore(const RowWord& word, float sum, Word16<Element>* value) const {
    const float factor = rsqrtf(sum / static_cast<float>(norm_.columns) + norm_.epsilon);
#pragma unroll
    for (int e = 0; e < Word16<Element>::kCount; ++e) {
      const float normed = NormedValue(norm_, unrounded_, value->element[e], word.residual.element[e]);
      FromFloat(normed * factor * ToFloat(word.weight.element[e]), &value->element[e]);
    }
    static_cast<uint4*>(norm_.out)[word.at] = value->word;
  }

  // Whether a scale is made for each row, for which the cluster meets once more.
  __device__ bool MakesRowScales() const {
    return kQuantizes && quantization_.static_scale == nullptr && !quantization_.by_blocks;
  }

  // Quantises the thread's word, unless a thread of the cluster has given up.
  __device__ void Quantize(const RowWord& word, bool normed, const Word16<Element>& value) const {
    constexpr int kCount = Word16<Element>::kCount;
    const NormQuantization& to = quantization_;
    const bool has = normed && word.has;
    const auto row = static_cast<int64_t>(blockIdx.x / ClusterBlocks());
    const uint32_t most = has && to.static_scale == nullptr ? GreatestOf(value.element) : 0;
    float scale = given_scale_;
    if (to.by_blocks) {
      scale = BlockScale<kCount>(to, has, row, word.in_row * kCount, most);
    } else if (MakesRowScales()) {
      scale = QuantizationScale(GreatestOfCluster(most));
      if (has && word.in_row == 0) to.scales[row * to.row_pitch] = scale;
    }
    if (has) StoreQuantizedWord(to, word.at, value.element, scale);
  }

  // The greatest value of all threads of the cluster that move data.
  __device__ uint32_t GreatestOfCluster(uint32_t most) const {
    __shared__ float partial[kMaxNormCluster * kMaxNormWarps];
    const unsigned cluster = ClusterBlocks(), warps = movers_ / 32, lane = threadIdx.x % 32;
    most = GreatestOfLanes<32>(most);
    if (lane < cluster)
      StoreToBlock(&partial[ClusterRank() * warps + threadIdx.x / 32], lane, __uint_as_float(most));
    ArriveCluster();
    AwaitCluster();
    uint32_t greatest = 0;
    for (unsigned i = lane; i < cluster * warps; i += 32)
      greatest = Greater(greatest, __float_as_uint(partial[i]));
    return GreatestOfLanes<32>(greatest);
  }

  // Exchanges the thread's word. Returns the sum of the warp's squares, or kGivenUp.
  __device__ float SumUp(const RowWord& word, Word16<Element>* value) const {
    const auto& launch = this->launch_;
    TestHooks::BeforeSignal(this->context_.value(), 0);
    if (word.has) {
#pragma unroll 1
      for (int j = 1; j < launch.world; ++j)
        this->Send(this->Slot(this->Peer(j), launch.rank, 0) + word.at, word.mine.word);
    }
    Packet packets[1][kMax];
    const auto wanted = [&](int, int s) { return word.has && s < launch.world && s != launch.rank; };
    const bool come = this->template Take<1>(0, word.at, 0, wanted, packets);
    TriggerDependents();  // all that is sent here has been sent, by kernels that have all begun
    float squares = 0.0f;
    if (word.has) {
      Word16<Element> terms[kMax];
#pragma unroll
      for (int s = 0; s < kMax; ++s)
        terms[s].word = s == launch.rank ? word.mine.word : this->DataOf(packets[0][s]);
      *value = this->SumOf(terms);
      Word16<Element> with_residual;
#pragma unroll
      for (int e = 0; e < Word16<Element>::kCount; ++e) {
        const float normed = NormedValue(norm_, unrounded_, value->element[e], word.residual.element[e]);
        squares = AddSquare(normed, squares);
        FromFloat(normed, &with_residual.element[e]);
      }
      if (come && norm_.residual != nullptr)
        static_cast<uint4*>(norm_.residual_out)[word.at] = with_residual.word;
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(0xFFFFFFFF, squares, lanes);
    return come ? squares : kGivenUp;
  }

  // The sum over all warps of the cluster, by threads that move data; kGivenUp if any has given up.
  __device__ float SumOfCluster(float squares, float (&partial)[kMaxNormCluster * kMaxNormWarps]) const {
    const unsigned cluster = ClusterBlocks(), warps = movers_ / 32, lane = threadIdx.x % 32;
    AwaitCluster();
    if (lane < cluster) StoreToBlock(&partial[ClusterRank() * warps + threadIdx.x / 32], lane, squares);
    ArriveCluster();
    AwaitCluster();
    float sum = 0.0f;
    bool given_up = false;
    for (unsigned i = lane; i < cluster * warps; i += 32) {
      given_up = given_up || partial[i] < 0;
      sum += partial[i];
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
    return __any_sync(0xFFFFFFFF, given_up) ? kGivenUp : sum;
  }

  const NormLaunch& norm_;
  const NormQuantization& quantization_;
  const float given_scale_;  // loaded before the exchange
  const bool unrounded_;
  const unsigned movers_;
};

template <typename Element, int kMax, typename TestHooks, bool kQuantizes>
__global__ void __launch_bounds__(kCollectiveThreads + kHandshakeThreads)
    RunClientSplitNorm(const __grid_constant__ ClientNormLaunch launch) {
#if __CUDA_ARCH__ >= 900
  using Norm = DenseSplitNorm<Element, kMax, TestHooks, kQuantizes>;
  __shared__ float partial[kMaxNormCluster * kMaxNormWarps];
  ArriveCluster();  // this block has begun
  NormWord<Element> word = Norm::Place(launch.norm);
  WaitForPrimary();
  Norm::Load(launch, &word);
  const ClientLaunchContext context(launch.sum.group_state);
  const Norm norm(launch, context);
  if (__syncthreads_or(!norm.Run(word, partial, context.HasFailed()))) return;
  TriggerDependents();
  context.ReportProgress();
#endif
}

// The kernel for a launch's type and world size; null where there is none. More than two ranks have none,
// since no node with more has run it.
template <typename TestHooks, bool kQuantizes>
struct DenseSplitNormKernels {
  using Kernel = void (*)(const ClientNormLaunch);
  static Kernel Of(DType type, int world) {
    if (world > 2) return nullptr;
    if constexpr (!kQuantizes) {
      if (type == DType::kF32) return &RunClientSplitNorm<float, 2, TestHooks, false>;
    }
    switch (type) {
      case DType::kF16: return &RunClientSplitNorm<__half, 2, TestHooks, kQuantizes>;
      case DType::kBf16: return &RunClientSplitNorm<__nv_bfloat16, 2, TestHooks, kQuantizes>;
      default: return nullptr;
    }
  }
};

}  // namespace tandem::cuda
