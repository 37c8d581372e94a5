// File: backend.h
//
// The seam between backends: what an engine needs of a GPU. The host backend (kernels/host) implements it
// with memfds and threads, the CUDA backend (kernels/cuda) with VMM segments and streams. Everything above
// (launch queue, executor, watchdog, abort and release) is shared code and knows only this file.
//
// Thread rule: a Lane is used by one thread at a time; the Backend is thread-safe. No call here blocks behind
// work that is queued on a lane.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/unique_fd.h"
#include "common/word.h"
#include "program/skinny_layout.h"
#include "program/steps.h"
#include "tandem/dtype.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem {

// The detail's reason of a status that only a new process mends.
inline constexpr char kContextLost[] = "CONTEXT_LOST";

// Work that has a guard does nothing if *word has reached `value` (by cyclic comparison) when its turn comes.
// Null: none.
struct Guard {
  const Word* word = nullptr;
  uint64_t value = 0;
};

// The steps of a program as a lane takes them: the same structs, with addresses.
using DeviceView = plan::StridedView<std::byte*>;
using NormArgs = plan::Norm<std::byte*>;

struct CopyArgs : plan::Copy<std::byte*> {
  Guard guard{};
};

struct MatmulArgs : plan::Matmul<std::byte*> {
  const Word* abort_word = nullptr;  // non-zero ends the wait for a chunk; null: nothing does
  Guard guard{};

  // The words that the chunks of A wait for, one each; null: all of A is ready.
  const uint32_t* chunk_words() const { return reinterpret_cast<const uint32_t*>(chunk_signals.data); }
  int chunks() const { return has_chunk_signals ? static_cast<int>(chunk_signals.extent[0]) : 1; }
};

struct ReduceArgs : plan::Reduce<std::byte*> {
  Guard guard{};
};

// `communicator` is the group's, made by Backend::MakeCommunicator.
class Communicator;
struct NcclArgs : plan::Nccl<std::byte*> {
  Communicator* communicator = nullptr;
};

using CollectiveItem = plan::KernelSum<std::byte*>;

// Waits for words of this rank's area, then items, then writes of the launch number to peers' words. The
// words are those of block 0; block b's lie b * PhasesArgs::word_stride further.
struct CollectivePhase {
  std::vector<Word*> waits, signals;
  std::vector<CollectiveItem> items;
};

struct PhasesArgs {
  int word_stride = 1;
  std::vector<CollectivePhase> phases;
};

// A packet exchange: small data travels with its flag beside it.
struct PacketsArgs : plan::PacketPieces<std::byte*> {
  std::vector<std::byte*> packets;  // by rank: its packets of this launch's half, as mapped here
  size_t packet_bytes = 0;          // of the half
  bool dense = false;               // by dense packets behind both halves; engines have none
};

// Where a peer gets what a part of a fused matmul has made.
struct FusedDelivery {
  int rank = 0;  // whose memory
  DeviceView to;
  Word* done = nullptr;  // gets the launch number when `to` is written
  int words = 1;  // the words from `done` on that get it; of several, each is for a band of columns, which
                  // it follows
};

// A product within a fused matmul, and what surrounds it. All of a fused matmul's have equal rows but one,
// which may have fewer.
struct FusedPart {
  std::vector<Word*> waits;  // A's rows may be read once these have reached the launch number
  MatmulArgs matmul;
  Word* done = nullptr;  // gets the launch number when C, or the sum, is written; null: nobody asks
  // Instead of C, `sum.dst` is written: the sum of `sum.sources` once `sum_waits` have reached the launch
  // number. The product itself is source `own`, whose memory is not read.
  bool sums = false;
  int own = -1;
  // The words of each other source, in order (FusedDelivery::words).
  std::vector<Word*> sum_waits;
  ReduceArgs sum;
  // A sum is written to peers as well; a product without a sum to its one delivery, and perhaps to C on the
  // way.
  std::vector<FusedDelivery> deliveries;
};

// A push of this rank's own data by a client-placed fused matmul, before and beside the products.
struct FusedPush {
  int rank = 0;  // whose memory
  DeviceView from, to;
  Word* done = nullptr;  // gets the launch number when `to` is written; null: the next push's word covers it
};

// A fused matmul: products in this order.
struct FusedArgs {
  std::vector<FusedPart> parts;
  Word* entered = nullptr;  // deliveries may be written once it has reached the launch number; null: at once
  std::vector<Word*> closing;  // the kernel ends once these have
  // Of clients' fused matmuls: the index of the words by which all ranks meet first; -1: engines' have none.
  int handshake = -1;
  std::vector<FusedPush> pushes;
};

// A product of few rows that one kernel of each rank computes together with its collective: see
// plan::SkinnyStep. A lane that refuses it fails its launch.
struct SkinnyArgs {
  SkinnyLayout layout;
  MatmulArgs matmul;  // bias and result scale come after the sum
  bool scales_travel = false;
  std::vector<DeviceView> areas;  // by rank: its exchange area
  // By rank: this rank's first word there, and the other's first word here.
  std::vector<Word*> words, arrived;
};

// State that a backend keeps of a piece of work from launch to launch with the same addresses.
struct PreparedWork {
  virtual ~PreparedWork() = default;
};

// A whole collective as one kernel of each rank: see plan::CollectiveStep.
struct CollectiveArgs {
  DType dtype = DType::kF32;
  int blocks = 1;  // equal on all ranks
  int rank = 0, world_size = 1;
  std::variant<PhasesArgs, PacketsArgs, FusedArgs, SkinnyArgs> work;
  // Not null: where the backend may keep what it makes of a product with these addresses. Empty the first
  // time.
  std::unique_ptr<PreparedWork>* prepared = nullptr;

  uint64_t launch_number = 0;
  const Word* abort_word = nullptr;  // non-zero ends the kernel's waits; null: nothing does
  Guard guard{};

  // The work if it is of that kind, else null.
  template <class Work>
  const Work* As() const {
    return std::get_if<Work>(&work);
  }
  bool Multiplies() const { return As<FusedArgs>() != nullptr || As<SkinnyArgs>() != nullptr; }
};

// A point in a lane's work. Created once, recorded many times; a wait sees the latest record made before it.
class Event {
 public:
  virtual ~Event() = default;
  // True when the latest record has been reached (or none was made).
  virtual bool Done() const = 0;
  // CLOCK_MONOTONIC nanoseconds at which the latest record was reached; 0 before.
  virtual int64_t TimeNs() const = 0;
};

// An in-order stream of device work. Every call enqueues and returns.
class Lane {
 public:
  virtual ~Lane() = default;
  // After all earlier work of the lane, with release order: everything before is visible to who reads the new
  // value.
  virtual Status WriteWord(Word* word, uint64_t value) = 0;
  // Holds the lane until *word >= value by cyclic comparison ((int64_t)(*word - value) >= 0), with acquire
  // order. No time-out, no abort: the word is the only way out, as on a GPU.
  virtual Status WaitWord(const Word* word, uint64_t value) = 0;
  virtual Status Copy(const CopyArgs& args) = 0;
  virtual Status Matmul(const MatmulArgs& args) = 0;
  virtual Status Reduce(const ReduceArgs& args) = 0;
  virtual Status Norm(const NormArgs& args) = 0;
  virtual Status Nccl(const NcclArgs& args) = 0;
  // One kernel for a whole collective, if Backend::HasCollective() says so. Lanes of peers must run theirs at
  // the same time.
  virtual Status Collective(const CollectiveArgs& /*args*/) {
    return Unimplemented("this backend runs collectives step by step");
  }
  virtual Status Record(Event* event) = 0;
  virtual Status Wait(Event* event) = 0;
  // From now on the lane may keep words back that are written and waited for one after another, to enqueue
  // them together: until its next other call, or FlushWords. Only for a lane whose user flushes it.
  virtual void HoldWords() {}
  // Enqueues what is kept back; it goes on holding words.
  virtual Status FlushWords() { return Status::Ok(); }
  // Device streams that the lane can be on, one at a time: at first on that of index 0.
  virtual int stream_count() const { return 1; }
  // All later work goes to this stream. Only while nothing that the lane was given is unfinished: nothing
  // orders the streams against each other. FAILED_PRECONDITION while words are kept back, OUT_OF_RANGE for a
  // stream that it does not have.
  virtual Status UseStream(int index) {
    return index == 0 ? Status::Ok() : OutOfRange("a lane of one stream has no other");
  }
};

// Memory of one GPU that other processes can map: a memfd on the host, a VMM allocation on CUDA.
class Segment {
 public:
  virtual ~Segment() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // True when letting go of it may block behind every lane: do that only while no lane holds work.
  virtual bool ReleaseBlocks() const { return false; }
};

// The group's handle on NCCL or its stand-in. Aborting ends every collective in flight, here and on the
// peers.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // Returns at once, also while lanes wait.
  virtual void Abort() = 0;
  // True once the peers' communicators have met: collectives can be enqueued. An error when they never will.
  virtual Result<bool> Ready() { return true; }
};

// The state that a communicator of the host's stand-in shares with its peers; NCCL takes `unique_id` instead.
struct CommunicatorOptions {
  int rank = 0;
  int world_size = 1;
  std::string unique_id;                      // Backend::MakeUniqueId's of one rank; empty on the host
  std::map<std::string, std::string> config;  // the group's options; the backend takes those that it knows
  std::vector<std::byte*> scratch;  // host: every rank's scratch area, scratch_bytes long, zeroed at creation
  size_t scratch_bytes = 0;
  const Word* abort_word = nullptr;  // non-zero ends every wait of the stand-in
};

// The kinds of work that a guard may be on. kFused: a kernel that multiplies;
// kCollective: other collectives. A kernel that was cancelled leaves no trace: no word, no state.
enum class Guarded : uint8_t { kCopy, kCopyEngine, kMatmul, kReduce, kCollective, kFused };

// Engines announce these to tandemd, which never decides by a backend's name.
struct BackendCapabilities {
  bool packet_kernels = false;  // those of the algorithm low_latency
  bool communicators = false;   // MakeUniqueId makes ids of NCCL's communicators
  bool ipc_memory = false;      // ImportIpc
  bool on_gpu = false;          // lanes run on a GPU, segments and clients' memory are the driver's
};

// One GPU. Lanes alias onto the hardware queues that the backend was made with, as streams do.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string Name() const = 0;  // "host" or "cuda"
  virtual BackendCapabilities Capabilities() const { return {}; }
  // Allocates an exportable segment, zeroed, multiple of SegmentGranularity(). RESOURCE_EXHAUSTED when there
  // is no room.
  virtual Result<UniqueFd> AllocateSegment(size_t bytes) = 0;
  virtual size_t SegmentGranularity() const = 0;
  // Maps a segment (own or a peer's) for this GPU. Takes nothing of `fd`.
  virtual Result<std::unique_ptr<Segment>> MapSegment(int fd, size_t bytes) = 0;
  // Imports a client's own memory: checks the descriptor, then maps it.
  virtual Result<std::unique_ptr<Segment>> ImportMemory(int fd, size_t bytes) = 0;
  // Imports a client's own memory that consists of several allocations (a VMM range of many chunks), mapped
  // one behind the other at one address. `bytes[i]` is the size of the memory behind `fds[i]`.
  virtual Result<std::unique_ptr<Segment>> ImportChunks(std::span<const int> /*fds*/,
                                                        std::span<const uint64_t> /*bytes*/) {
    return Unimplemented("this backend maps the chunks of a range one by one");
  }
  // Imports `bytes` at `offset` of a client's allocation by its CUDA IPC handle, fewer if it ends there.
  // data() is at the offset.
  virtual Result<std::unique_ptr<Segment>> ImportIpc(std::string_view /*handle*/, uint64_t /*offset*/,
                                                     size_t /*bytes*/) {
    return Unimplemented("CUDA IPC handles need the CUDA backend");
  }
  // `priority`: lower is more urgent, 0 the highest.
  virtual Result<std::unique_ptr<Lane>> MakeLane(int priority) = 0;
  // The same with two streams, if it makes a difference to the device's clients which one of them the lane is
  // on; else with one.
  virtual Result<std::unique_ptr<Lane>> MakeDualStreamLane(int priority) { return MakeLane(priority); }
  virtual Result<std::unique_ptr<Event>> MakeEvent() = 0;
  // The data that the ranks of a new communicator share; empty where they need nothing.
  virtual Result<std::string> MakeUniqueId() { return std::string(); }
  // Begins to make a communicator and returns; see Communicator::Ready.
  virtual Result<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions& options) = 0;
  // Chooses and loads what a product of this shape needs, so that Lane::Matmul finds it: a backend that loads
  // kernels lazily must not do so beside a lane that waits. Reads extents, strides, dtypes and flags;
  // addresses may be null. May take milliseconds; called when a program is prepared, never between the steps
  // of a launch.
  virtual Status PrepareMatmul(const MatmulArgs&) { return Status::Ok(); }
  // True when lanes take CollectiveArgs of this kind; else the steps of the expansion are run. Depends on
  // nothing but the arguments' types and numbers, so that all ranks of a group decide alike.
  virtual bool HasCollective(const CollectiveArgs&) const { return false; }
  // OK when the fused algorithm's fused kernels are loaded; else UNIMPLEMENTED, and the message says why
  // they are not.
  virtual Status FusedKernels() const { return Unimplemented("it runs the " + Name() + " backend"); }
  // SMs that a kernel that waits for its peers' may take here, so that all of them find room; 0: no bound.
  virtual int KernelSms() const { return 0; }
  // True when lanes look at the guard of such work. Where they do not, it must have none.
  virtual bool HonoursGuard(Guarded) const { return false; }
  // Makes host memory of this process (pages of words) reachable from lanes, at the same address. Whole
  // pages.
  virtual Status RegisterHostMemory(void* /*address*/, size_t /*bytes*/) { return Status::Ok(); }
  // Takes it back. May block behind every lane: only while no lane holds work.
  virtual Status UnregisterHostMemory(void* /*address*/) { return Status::Ok(); }
  // Writes a word from the CPU, wherever it lies, at once: not behind any lane, also while lanes wait. For
  // releasing lanes of a broken group and for its abort word.
  virtual Status StoreWord(Word* word, uint64_t value) {
    word->store(value, std::memory_order_release);
    return Status::Ok();
  }
  // Two words in this order: a reader of the second one's value sees the first one's, on the device too. May
  // return before the writes are visible.
  virtual Status StoreWordsInOrder(Word* first, uint64_t first_value, Word* second, uint64_t second_value) {
    TANDEM_RETURN_IF_ERROR(StoreWord(first, first_value));
    return StoreWord(second, second_value);
  }
  // Writes `value` into `count` words from `words` on, as StoreWord does. A concurrent write may win or
  // lose.
  virtual Status FillWords(Word* words, uint64_t value, size_t count) {
    for (size_t i = 0; i < count; ++i) TANDEM_RETURN_IF_ERROR(StoreWord(words + i, value));
    return Status::Ok();
  }
  // Reads a word from the CPU, to report what a lane waits for. UNIMPLEMENTED where words may lie out of the
  // CPU's reach.
  virtual Result<uint64_t> LoadWord(const Word* word) { return word->load(std::memory_order_acquire); }
  // The same for a client's word of 32 bits: a chunk signal.
  virtual Result<uint32_t> LoadWord32(const uint32_t* word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
  }
  // Zeroes memory of a segment and waits until that is done. No lane may be using it.
  virtual Status ClearMemory(std::byte* data, size_t bytes) {
    std::memset(data, 0, bytes);
    return Status::Ok();
  }
  // OK while the device works for this process. ABORTED with reason kContextLost once it never will again: a
  // fault of this process, or under MPS of any other on the device. Asked again and again; takes about a
  // microsecond.
  virtual Status Health() { return Status::Ok(); }
  // How often Health is to be asked, also while nothing runs; 0: never.
  virtual int64_t HealthPeriodNs() const { return 0; }
  // Bytes of device memory in all.
  virtual size_t MemoryBytes() const = 0;
  // Bytes of device memory that this process takes without its segments (contexts, libraries, scratch); 0:
  // not known.
  virtual size_t OwnMemoryBytes() const { return 0; }
};

}  // namespace tandem
