// A stand-in for libnccl.so.2 on host memory, for tests of libtandem-nccl.so. Ranks meet in a file of
// $TMPDIR. Each call adds a line to the log that fake_nccl_log() returns. Collectives are done when they
// return.
#include <fcntl.h>
#include <linux/futex.h>
#include <nccl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/integration/nccl/values.h"

using namespace tandem::nccl_test;  // NOLINT: this file is all glue

#define FAKE_NCCL extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t kSlotBytes = size_t{64} << 20;
constexpr size_t kHeadBytes = 4096;

std::mutex log_mutex;
std::string log_text;

void Log(const std::string& line) {
  const std::lock_guard lock(log_mutex);
  log_text += line + "\n";
}

// Zero bytes are a barrier that nobody has come to.
struct Head {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
};

void Futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  ::syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

struct ncclComm {
  std::string name;
  int rank = 0, ranks = 0;
  int device = 0;
  int splits = 0;
  std::byte* shared = nullptr;

  size_t bytes() const { return kHeadBytes + static_cast<size_t>(ranks) * kSlotBytes; }
  std::byte* slot(int of) const { return shared + kHeadBytes + static_cast<size_t>(of) * kSlotBytes; }

  bool Map() {
    const char* folder = std::getenv("TMPDIR");
    const std::string path = std::string(folder == nullptr ? "/tmp" : folder) + "/fake-nccl-" + name;
    const int fd = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes())) != 0) return false;
    void* mapped = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    shared = mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
    return shared != nullptr;
  }
  ~ncclComm() {
    if (shared != nullptr) ::munmap(shared, bytes());
  }

  void Barrier() {
    auto& head = *reinterpret_cast<Head*>(shared);
    const uint32_t now = head.generation.load();
    if (head.arrived.fetch_add(1) + 1 == static_cast<uint32_t>(ranks)) {
      head.arrived.store(0);
      head.generation.fetch_add(1);
      Futex(head.generation, FUTEX_WAKE, INT_MAX);
      return;
    }
    while (head.generation.load() == now) Futex(head.generation, FUTEX_WAIT, now);
  }

  // Calls `read` while every rank's slot has the bytes that the rank has given.
  void Exchange(const void* own, size_t own_bytes, const std::function<void()>& read) {
    if (own_bytes > 0) std::memcpy(slot(rank), own, own_bytes);
    Barrier();
    read();
    Barrier();
  }
};

namespace {

std::string Text(const char* name, size_t count, int type, int reduction, int root) {
  return std::string(name) + " count=" + std::to_string(count) + " type=" + std::to_string(type) +
         " op=" + std::to_string(reduction) + " root=" + std::to_string(root);
}

// The reduction over all ranks of `count` elements that begin at element `first` of each slot.
void Reduce(const ncclComm& comm, size_t first, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
            void* to) {
  std::vector<double> values(static_cast<size_t>(comm.ranks));
  for (size_t i = 0; i < count; ++i) {
    for (int rank = 0; rank < comm.ranks; ++rank)
      values[static_cast<size_t>(rank)] = Load(comm.slot(rank), type, first + i);
    Store(to, type, i, Reduced(values, reduction));
  }
}

ncclResult_t Make(std::string name, int rank, int ranks, ncclComm_t* made) {
  auto* const comm = new ncclComm;
  comm->name = std::move(name);
  comm->rank = rank;
  comm->ranks = ranks;
  const char* device = std::getenv("LOCAL_RANK");
  comm->device = device == nullptr ? rank : std::atoi(device);
  if (!comm->Map()) return ncclSystemError;
  comm->Barrier();
  *made = comm;
  return ncclSuccess;
}

}  // namespace

FAKE_NCCL const char* fake_nccl_log() {
  static std::string given;
  const std::lock_guard lock(log_mutex);
  given = log_text;
  log_text.clear();
  return given.c_str();
}

FAKE_NCCL ncclResult_t ncclGetVersion(int* version) {
  *version = 29999;
  return ncclSuccess;
}

FAKE_NCCL ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  Log("CommInitRank");
  return Make(id.internal, rank, ranks, comm);
}

FAKE_NCCL ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  Log("CommSplit");
  const int own[2] = {color, key};
  int rank = 0, ranks = 0;
  comm->Exchange(own, sizeof(own), [&] {
    for (int other = 0; other < comm->ranks; ++other) {
      int its[2];
      std::memcpy(its, comm->slot(other), sizeof(its));
      if (its[0] != color) continue;
      ++ranks;
      if (its[1] < key || (its[1] == key && other < comm->rank)) ++rank;
    }
  });
  ++comm->splits;
  *made = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  return Make(comm->name + "-" + std::to_string(comm->splits) + "-" + std::to_string(color), rank, ranks,
              made);
}

FAKE_NCCL ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = comm->ranks;
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
FAKE_NCCL const char* ncclGetErrorString(ncclResult_t) { return "fake error"; }
FAKE_NCCL const char* ncclGetLastError(ncclComm_t) { return "fake text"; }
FAKE_NCCL ncclResult_t ncclCommFinalize(ncclComm_t) {
  Log("CommFinalize");
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Log("CommDestroy");
  delete comm;
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Log("CommAbort");
  delete comm;
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclCommRevoke(ncclComm_t, int) {
  Log("CommRevoke");
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclCommShrink(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) {
  Log("CommShrink");
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclCommSuspend(ncclComm_t, int flags) {
  Log("CommSuspend flags=" + std::to_string(flags));
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclCommResume(ncclComm_t) {
  Log("CommResume");
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclGroupStart() {
  Log("GroupStart");
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclGroupEnd() {
  Log("GroupEnd");
  return ncclSuccess;
}

FAKE_NCCL ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                                     ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t) {
  Log(Text("AllReduce", count, type, reduction, 0));
  comm->Exchange(send, count * SizeOf(type), [&] { Reduce(*comm, 0, count, type, reduction, receive); });
  return ncclSuccess;
}

FAKE_NCCL ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                                  ncclRedOp_t reduction, int root, ncclComm_t comm, cudaStream_t) {
  Log(Text("Reduce", count, type, reduction, root));
  comm->Exchange(send, count * SizeOf(type), [&] {
    if (comm->rank == root) Reduce(*comm, 0, count, type, reduction, receive);
  });
  return ncclSuccess;
}

FAKE_NCCL ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                                         ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t) {
  Log(Text("ReduceScatter", count, type, reduction, 0));
  comm->Exchange(send, count * SizeOf(type) * static_cast<size_t>(comm->ranks), [&] {
    Reduce(*comm, static_cast<size_t>(comm->rank) * count, count, type, reduction, receive);
  });
  return ncclSuccess;
}

FAKE_NCCL ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                                     ncclComm_t comm, cudaStream_t) {
  Log(Text("AllGather", count, type, 0, 0));
  const size_t bytes = count * SizeOf(type);
  comm->Exchange(send, bytes, [&] {
    for (int rank = 0; rank < comm->ranks; ++rank)
      std::memcpy(static_cast<std::byte*>(receive) + static_cast<size_t>(rank) * bytes, comm->slot(rank),
                  bytes);
  });
  return ncclSuccess;
}

FAKE_NCCL ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type,
                                    ncclComm_t comm, cudaStream_t) {
  Log(Text("AlltoAll", count, type, 0, 0));
  const size_t bytes = count * SizeOf(type);
  comm->Exchange(send, bytes * static_cast<size_t>(comm->ranks), [&] {
    for (int rank = 0; rank < comm->ranks; ++rank)
      std::memcpy(static_cast<std::byte*>(receive) + static_cast<size_t>(rank) * bytes,
                  comm->slot(rank) + static_cast<size_t>(comm->rank) * bytes, bytes);
  });
  return ncclSuccess;
}

FAKE_NCCL ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                                     int root, ncclComm_t comm, cudaStream_t) {
  Log(Text("Broadcast", count, type, 0, root));
  const size_t bytes = count * SizeOf(type);
  comm->Exchange(send, comm->rank == root ? bytes : 0,
                 [&] { std::memcpy(receive, comm->slot(root), bytes); });
  return ncclSuccess;
}

FAKE_NCCL ncclResult_t ncclSend(const void*, size_t count, ncclDataType_t type, int peer, ncclComm_t,
                                cudaStream_t) {
  Log(Text("Send", count, type, 0, peer));
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclRecv(void*, size_t count, ncclDataType_t type, int peer, ncclComm_t,
                                cudaStream_t) {
  Log(Text("Recv", count, type, 0, peer));
  return ncclSuccess;
}
FAKE_NCCL ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* reduction, void*, ncclDataType_t,
                                                ncclScalarResidence_t, ncclComm_t) {
  *reduction = static_cast<ncclRedOp_t>(7);
  Log("RedOpCreatePreMulSum");
  return ncclSuccess;
}
// nccl.h of this version does not have it; eight arguments, of which two are on the stack.
FAKE_NCCL ncclResult_t ncclPutSignal(long a, double b, long c, long d, long e, long f, long g, long h) {
  Log("PutSignal " + std::to_string(a) + std::to_string(static_cast<int>(b)) + std::to_string(c) +
      std::to_string(d) + std::to_string(e) + std::to_string(f) + std::to_string(g) + std::to_string(h));
  return ncclSuccess;
}
