#include "kernels/host/nccl_standin.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "common/op_tables.h"
#include "kernels/host/nccl_options.h"
#include "kernels/host/random_delay.h"
#include "kernels/host/reduce.h"
#include "kernels/host/strided.h"
#include "kernels/host/word_wait.h"
#include "program/program.h"

namespace tandem::host {
namespace {

using plan::NcclKind;

constexpr size_t kWordsBytes = 4096;
constexpr size_t kLineBytes = 64;
constexpr int kMaxRanks = plan::kMaxWorldSize;

int64_t Bytes(DType dtype, int64_t count) { return static_cast<int64_t>(DTypeBytes(dtype)) * count; }

void CopyBytes(std::byte* destination, const std::byte* source, int64_t bytes) {
  if (bytes > 0 && destination != source) std::memmove(destination, source, static_cast<size_t>(bytes));
}

// The reduction of the steps: an average is a sum with a factor.
ReduceOp CombineOf(const NcclArgs& args) {
  return args.reduce_op == ReduceOp::kAvg ? ReduceOp::kSum : args.reduce_op;
}

float ScaleOf(const NcclArgs& args, int world_size) {
  return args.reduce_op == ReduceOp::kAvg ? 1.0f / static_cast<float>(world_size) : 1.0f;
}

}  // namespace

Result<std::unique_ptr<HostCommunicator>> HostCommunicator::Create(const CommunicatorOptions& options) {
  if (options.world_size < 1 || options.world_size > kMaxRanks || options.rank < 0 ||
      options.rank >= options.world_size) {
    return InvalidArgument("communicator: rank " + std::to_string(options.rank) + " of " +
                           std::to_string(options.world_size));
  }
  if (options.scratch.size() != static_cast<size_t>(options.world_size)) {
    return InvalidArgument("communicator: " + std::to_string(options.scratch.size()) + " scratch areas for " +
                           std::to_string(options.world_size) + " ranks");
  }
  if (options.scratch_bytes < kMinScratchBytes) {
    return InvalidArgument("communicator: a scratch area has " + std::to_string(options.scratch_bytes) +
                           " bytes; it needs " + std::to_string(kMinScratchBytes));
  }
  for (std::byte* area : options.scratch) {
    if (area == nullptr || reinterpret_cast<uintptr_t>(area) % kLineBytes != 0) {
      return InvalidArgument("communicator: a scratch area is missing or not aligned to 64 bytes");
    }
  }
  TANDEM_RETURN_IF_ERROR(ParseNcclOptions(options.config).status());
  std::unique_ptr<HostCommunicator> communicator(new HostCommunicator(options));
  communicator->half_bytes_ = (options.scratch_bytes - kWordsBytes) / 2 / kLineBytes * kLineBytes;
  return communicator;
}

Word* HostCommunicator::PublishedWord(int area, int writer) const {
  return reinterpret_cast<Word*>(options_.scratch[area] + static_cast<size_t>(writer) * kLineBytes);
}

Word* HostCommunicator::AbortWord(int area) const {
  return reinterpret_cast<Word*>(options_.scratch[area] + kMaxRanks * kLineBytes);
}

std::byte* HostCommunicator::Half(int area) const {
  return options_.scratch[area] + kWordsBytes + (round_ & 1) * half_bytes_;
}

int64_t HostCommunicator::ChunkElements(DType dtype, int parts) const {
  return static_cast<int64_t>(half_bytes_ / DTypeBytes(dtype) / static_cast<size_t>(parts));
}

void HostCommunicator::Abort() {
  for (int area = 0; area < options_.world_size; ++area) AbortWord(area)->store(1, std::memory_order_release);
}

bool HostCommunicator::Aborted() const {
  if (AbortWord(options_.rank)->load(std::memory_order_acquire) != 0) return true;
  return options_.abort_word != nullptr && options_.abort_word->load(std::memory_order_acquire) != 0;
}

bool HostCommunicator::Await(const Word& word, const TaskContext& context) const {
  Backoff backoff;
  while (!Reached(word.load(std::memory_order_acquire), round_)) {
    if (Aborted() || context.abandoned->load(std::memory_order_relaxed)) return false;
    backoff.Pause();
  }
  return true;
}

// Two halves suffice. A rank publishes round k + 1 only after it has read round k. It waits for everybody's
// round k + 1 before it begins k + 2, which overwrites the half of k.
template <typename Publish, typename Consume>
bool HostCommunicator::Exchange(const TaskContext& context, Publish&& publish, Consume&& consume) {
  if (Aborted()) return false;
  ++round_;
  publish(Half(options_.rank));
  if (context.delay != nullptr) context.delay->Pause();
  for (int peer = 0; peer < options_.world_size; ++peer) {
    PublishedWord(peer, options_.rank)->store(round_, std::memory_order_release);
  }
  std::array<const std::byte*, kMaxRanks> halves{};
  for (int peer = 0; peer < options_.world_size; ++peer) {
    if (!Await(*PublishedWord(options_.rank, peer), context)) return false;
    halves[peer] = Half(peer);
  }
  consume(halves);
  return true;
}

Status HostCommunicator::Check(const NcclArgs& args) const {
  const NcclKind kind = args.kind;
  if (kind > NcclKind::kBarrier)
    return InvalidArgument("unknown collective " + std::to_string(static_cast<int>(kind)));
  if (kind == NcclKind::kBarrier) return Status::Ok();
  if (args.root < 0 || args.root >= options_.world_size)
    return OutOfRange("root " + std::to_string(args.root));
  const bool reads = args.Reads(options_.rank), writes = args.Writes(options_.rank);
  if (reads) TANDEM_RETURN_IF_ERROR(CheckView(args.in, "collective input"));
  if (writes) TANDEM_RETURN_IF_ERROR(CheckView(args.out, "collective output"));
  if ((reads && !IsContiguous(args.in)) || (writes && !IsContiguous(args.out))) {
    return InvalidArgument("a collective's tensors must be contiguous");
  }
  if (reads && writes) {
    if (args.in.dtype != args.out.dtype) return InvalidArgument("a collective's tensors differ in dtype");
    int64_t in = plan::Elements(args.in), out = plan::Elements(args.out), world_size = options_.world_size;
    bool fits = kind == NcclKind::kAllGather       ? out == in * world_size
                : kind == NcclKind::kReduceScatter ? in == out * world_size
                : kind == NcclKind::kAllToAll      ? in == out && in % world_size == 0
                                                   : in == out;
    if (!fits) {
      return InvalidArgument("collective of " + std::to_string(in) + " elements in and " +
                             std::to_string(out) + " out over " + std::to_string(world_size) + " ranks");
    }
  }
  bool reduces =
      kind == NcclKind::kAllReduce || kind == NcclKind::kReduceScatter || kind == NcclKind::kReduce;
  if (reduces && args.reduce_op == ReduceOp::kAvg && !IsFloating(args.in.dtype)) {
    return InvalidArgument("the average of integers");
  }
  // NCCL has none, of whatever type.
  if (reduces && IsBitwise(args.reduce_op)) return InvalidArgument("NCCL has no bitwise reductions");
  return Status::Ok();
}

void HostCommunicator::Run(const NcclArgs& args, const TaskContext& context) {
  switch (args.kind) {
    case NcclKind::kAllReduce: AllReduce(args, context, false); break;
    case NcclKind::kReduce: AllReduce(args, context, true); break;
    case NcclKind::kReduceScatter: ReduceScatter(args, context); break;
    case NcclKind::kAllGather: AllGather(args, context); break;
    case NcclKind::kBroadcast: Broadcast(args, context); break;
    case NcclKind::kAllToAll: AllToAll(args, context); break;
    case NcclKind::kBarrier:
      Exchange(
          context, [](std::byte*) {}, [](const auto&) {});
      break;
  }
}

// In each loop below the exchange runs at least once: a collective of no elements still waits for every rank.
void HostCommunicator::AllReduce(const NcclArgs& args, const TaskContext& context, bool root_only) {
  DType dtype = args.in.dtype;
  int64_t count = plan::Elements(args.in), chunk = ChunkElements(dtype, 1), first = 0;
  bool writes = !root_only || args.root == options_.rank;
  std::vector<const std::byte*> sources(static_cast<size_t>(options_.world_size));
  do {
    int64_t elements = std::min(chunk, count - first);
    bool going = Exchange(
        context,
        [&](std::byte* half) { CopyBytes(half, args.in.data + Bytes(dtype, first), Bytes(dtype, elements)); },
        [&](const auto& halves) {
          if (!writes) return;
          std::copy_n(halves.begin(), sources.size(), sources.begin());
          ReduceContiguous(sources, args.out.data + Bytes(dtype, first), dtype, elements, CombineOf(args),
                           ScaleOf(args, options_.world_size));
        });
    if (!going) return;
    first += chunk;
  } while (first < count);
}

void HostCommunicator::ReduceScatter(const NcclArgs& args, const TaskContext& context) {
  DType dtype = args.in.dtype;
  int64_t count = plan::Elements(args.out), chunk = ChunkElements(dtype, options_.world_size), first = 0;
  std::vector<const std::byte*> sources(static_cast<size_t>(options_.world_size));
  do {
    int64_t elements = std::min(chunk, count - first);
    bool going = Exchange(
        context,
        [&](std::byte* half) {
          for (int owner = 0; owner < options_.world_size; ++owner) {
            CopyBytes(half + Bytes(dtype, owner * chunk), args.in.data + Bytes(dtype, owner * count + first),
                      Bytes(dtype, elements));
          }
        },
        [&](const auto& halves) {
          for (size_t peer = 0; peer < sources.size(); ++peer) {
            sources[peer] = halves[peer] + Bytes(dtype, options_.rank * chunk);
          }
          ReduceContiguous(sources, args.out.data + Bytes(dtype, first), dtype, elements, CombineOf(args),
                           ScaleOf(args, options_.world_size));
        });
    if (!going) return;
    first += chunk;
  } while (first < count);
}

void HostCommunicator::AllGather(const NcclArgs& args, const TaskContext& context) {
  DType dtype = args.in.dtype;
  int64_t count = plan::Elements(args.in), chunk = ChunkElements(dtype, 1), first = 0;
  do {
    int64_t elements = std::min(chunk, count - first);
    bool going = Exchange(
        context,
        [&](std::byte* half) { CopyBytes(half, args.in.data + Bytes(dtype, first), Bytes(dtype, elements)); },
        [&](const auto& halves) {
          for (int peer = 0; peer < options_.world_size; ++peer) {
            CopyBytes(args.out.data + Bytes(dtype, peer * count + first), halves[peer],
                      Bytes(dtype, elements));
          }
        });
    if (!going) return;
    first += chunk;
  } while (first < count);
}

void HostCommunicator::Broadcast(const NcclArgs& args, const TaskContext& context) {
  bool is_root = args.root == options_.rank;
  DType dtype = args.out.dtype;
  int64_t count = plan::Elements(args.out), chunk = ChunkElements(dtype, 1), first = 0;
  do {
    int64_t elements = std::min(chunk, count - first);
    bool going = Exchange(
        context,
        [&](std::byte* half) {
          if (is_root) CopyBytes(half, args.in.data + Bytes(dtype, first), Bytes(dtype, elements));
        },
        [&](const auto& halves) {
          CopyBytes(args.out.data + Bytes(dtype, first), halves[args.root], Bytes(dtype, elements));
        });
    if (!going) return;
    first += chunk;
  } while (first < count);
}

void HostCommunicator::AllToAll(const NcclArgs& args, const TaskContext& context) {
  DType dtype = args.in.dtype;
  int64_t count = plan::Elements(args.in) / options_.world_size,
          chunk = ChunkElements(dtype, options_.world_size);
  // In place, the chunk published in this round is overwritten in this round only: both are at `first`.
  int64_t first = 0;
  do {
    int64_t elements = std::min(chunk, count - first);
    bool going = Exchange(
        context,
        [&](std::byte* half) {
          for (int peer = 0; peer < options_.world_size; ++peer) {
            CopyBytes(half + Bytes(dtype, peer * chunk), args.in.data + Bytes(dtype, peer * count + first),
                      Bytes(dtype, elements));
          }
        },
        [&](const auto& halves) {
          for (int peer = 0; peer < options_.world_size; ++peer) {
            CopyBytes(args.out.data + Bytes(dtype, peer * count + first),
                      halves[peer] + Bytes(dtype, options_.rank * chunk), Bytes(dtype, elements));
          }
        });
    if (!going) return;
    first += chunk;
  } while (first < count);
}

}  // namespace tandem::host
