// Memory of another process, by IPC handle and by descriptors, on the importer's GPU and on another. Both
// processes see all GPUs, their own first, as clients and engines do. Also the refusals. Owner and importer
// are children; this process never uses CUDA.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "common/fd_socket.h"
#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_backend.h"

namespace tandem {
namespace {

constexpr size_t kBytes = size_t{3} << 20;
constexpr size_t kChunk = size_t{2} << 20;
constexpr int kChunks = 3;

// In children, gtest's macros would report into a copy.
#define MUST(condition)                                                            \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ::_exit(1);                                                                  \
    }                                                                              \
  } while (false)

int Gpus() {
  static const int count = [] {
    pid_t pid = ::fork();
    if (pid == 0) ::_exit(CudaDeviceCount());
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }();
  return count;
}

// Sees all of `gpus`, its own first.
pid_t Child(int own_gpu, int gpus, const std::function<void()>& body) {
  pid_t pid = ::fork();
  if (pid != 0) return pid;
  std::string visible = std::to_string(own_gpu);
  for (int gpu = 0; gpu < gpus; ++gpu) visible += gpu == own_gpu ? "" : "," + std::to_string(gpu);
  ::setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), 1);
  body();
  ::_exit(0);
}

int ExitOf(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

unsigned char PatternAt(size_t i) { return static_cast<unsigned char>((i * 2654435761u) >> 13); }

std::vector<unsigned char> Pattern(size_t bytes) {
  std::vector<unsigned char> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = PatternAt(i);
  return pattern;
}

void Copy(const void* to, const void* from, size_t bytes) {
  auto* driver = *cuda::LoadCudaDriver();
  MUST(driver
           ->MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                         nullptr)
           .ok());
  MUST(driver->StreamSynchronize(nullptr).ok());
}

bool Holds(const Segment& segment, size_t offset_in_pattern) {
  std::vector<unsigned char> bytes(segment.bytes());
  Copy(bytes.data(), segment.data(), bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != PatternAt(offset_in_pattern + i)) return false;
  }
  return true;
}

void Say(const char* what, const Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
}

// The owner: cudaMalloc memory, its handle, and the same refused to itself.
void OwnIpcMemory(int socket) {
  auto backend = MakeCudaBackend({});
  MUST(backend.ok());
  auto* driver = *cuda::LoadCudaDriver();
  auto address = driver->MemAlloc(kBytes);
  MUST(address.ok());
  Copy(reinterpret_cast<void*>(*address), Pattern(kBytes).data(), kBytes);
  auto handle = driver->IpcGetMemHandle(*address);
  MUST(handle.ok());
  std::string raw(handle->reserved, sizeof(handle->reserved));
  Status own = (*backend)->ImportIpc(raw, 0, kBytes).status();
  Say("its own handle", own);
  MUST(own.code() == Code::kInvalidArgument);
  MUST(SendMessage(socket, raw).ok());
  ::pause();
}

// Also memory of another GPU. The driver returns the opener's GPU as the memory's GPU, so the owner has to
// say where it lies.
void UseIpcMemory(int socket, pid_t owner, bool) {
  auto made = MakeCudaBackend({});
  MUST(made.ok());
  Backend& backend = **made;
  auto message = ReceiveMessage(socket);
  MUST(message.ok());
  const std::string handle = message->body;
  auto all = backend.ImportIpc(handle, 0, kBytes);
  Say("import", all.status());
  MUST(all.ok() && Holds(**all, 0));
  auto part = backend.ImportIpc(handle, 4096, 8192);
  Say("the same handle again", part.status());
  MUST(part.ok() && (*part)->data() == (*all)->data() + 4096 && Holds(**part, 4096));
  for (const uint64_t offset : {uint64_t{1} << 30, ~uint64_t{0}}) {
    auto beyond = backend.ImportIpc(handle, offset, 2);
    Say("beyond its end", beyond.status());
    MUST(beyond.ok() && (*beyond)->bytes() == 0);
  }
  Status garbage = backend.ImportIpc(std::string(64, 'x'), 0, 1).status();
  Say("no handle", garbage);
  MUST(!garbage.ok());
  MUST(backend.ImportIpc("short", 0, 1).status().code() == Code::kInvalidArgument);
  all->reset();
  MUST(Holds(**part, 4096));
  ::kill(owner, SIGKILL);
  ::usleep(300'000);
  MUST(Holds(**part, 4096));  // the import keeps it alive
  part->reset();
  Status gone = backend.ImportIpc(handle, 0, kBytes).status();
  Say("after its owner's end", gone);
  MUST(!gone.ok());
  MUST(backend.Health().ok());
}

void OwnChunks(int socket) {
  auto backend = MakeCudaBackend({});
  MUST(backend.ok());
  std::vector<UniqueFd> fds;
  std::vector<int> raw;
  std::vector<uint64_t> bytes(kChunks, kChunk);
  for (int i = 0; i < kChunks; ++i) {
    auto fd = (*backend)->AllocateSegment(kChunk);
    MUST(fd.ok());
    raw.push_back(fd->get());
    fds.push_back(std::move(*fd));
  }
  auto whole = (*backend)->ImportChunks(raw, bytes);
  Say("own chunks", whole.status());
  MUST(whole.ok() && (*whole)->bytes() == kChunks * kChunk);
  Copy((*whole)->data(), Pattern(kChunks * kChunk).data(), kChunks * kChunk);
  MUST(SendMessage(socket, "chunks", raw).ok());
  ::pause();
}

void UseChunks(int socket, pid_t owner, bool own_gpu) {
  auto made = MakeCudaBackend({});
  MUST(made.ok());
  Backend& backend = **made;
  auto message = ReceiveMessage(socket);
  MUST(message.ok() && message->fds.size() == kChunks);
  std::vector<int> raw;
  for (const UniqueFd& fd : message->fds) raw.push_back(fd.get());
  const std::vector<uint64_t> bytes(kChunks, kChunk);
  auto whole = backend.ImportChunks(raw, bytes);
  Say("chunks", whole.status());
  if (!own_gpu) {
    MUST(whole.status().code() == Code::kInvalidArgument);  // to be registered with its own GPU's engine
    auto segment = backend.MapSegment(raw[1], kChunk);      // a peer's segment is another matter
    MUST(segment.ok() && Holds(**segment, kChunk));
    return;
  }
  MUST(whole.ok() && Holds(**whole, 0));
  auto last_two = backend.ImportChunks(std::span(raw).subspan(1), std::span(bytes).subspan(1));
  MUST(last_two.ok() && Holds(**last_two, kChunk));
  std::vector<uint64_t> longer = bytes;
  longer[1] = 2 * kChunk;
  Status truncated = backend.ImportChunks(raw, longer).status();
  Say("a chunk that is shorter than it is said to be", truncated);
  MUST(truncated.code() == Code::kInvalidArgument);
  MUST(backend.ImportMemory(raw[0], kChunk + 1).status().code() == Code::kInvalidArgument);
  UniqueFd plain(::memfd_create("plain", 0));
  MUST(::ftruncate(plain.get(), kChunk) == 0);
  Status memfd = backend.ImportMemory(plain.get(), kChunk).status();
  Say("a memfd", memfd);
  MUST(memfd.code() == Code::kInvalidArgument);
  whole->reset();
  ::kill(owner, SIGKILL);
  ::usleep(100'000);
  MUST(Holds(**last_two, kChunk));
  MUST(backend.Health().ok());
}

class CudaImportTest : public testing::TestWithParam<bool> {
 protected:
  void Run(const std::function<void(int)>& own, const std::function<void(int, pid_t, bool)>& use) {
    const bool other_gpu = GetParam();
    if (Gpus() < (other_gpu ? 2 : 1)) GTEST_SKIP() << "needs " << (other_gpu ? 2 : 1) << " GPUs";
    auto sockets = SeqpacketPair();
    ASSERT_TRUE(sockets.ok());
    const int gpus = other_gpu ? 2 : 1;
    pid_t owner = Child(0, gpus, [&] { own(sockets->first.get()); });
    pid_t user = Child(other_gpu ? 1 : 0, gpus, [&] {
      sockets->first.Reset();
      use(sockets->second.get(), owner, !other_gpu);
    });
    sockets->first.Reset();
    EXPECT_EQ(ExitOf(user), 0);
    ::kill(owner, SIGKILL);
    EXPECT_EQ(ExitOf(owner), 1000 + SIGKILL);
  }
};

TEST_P(CudaImportTest, ByIpcHandle) { Run(OwnIpcMemory, UseIpcMemory); }
TEST_P(CudaImportTest, ByDescriptorsOfChunks) { Run(OwnChunks, UseChunks); }

INSTANTIATE_TEST_SUITE_P(Gpus, CudaImportTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "OfAnotherGpu" : "OfTheSameGpu"; });

}  // namespace
}  // namespace tandem
