// Calls of the library where memory, threads, mappings or descriptors run out: each ends in a status.
//
// This program's allocator, pthread_create, mmap and memfd_create fail at a place that a test chooses, on the
// test's thread. The allocator fails on the library's own threads, too. A test chooses one place after the
// other until a run meets none.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <optional>

#include "client/lib/handles.h"
#include "client/tests/allowance.h"
#include "client/tests/fake_control.h"
#include "tandem/host_stream.h"
#include "tandem/pending.h"
#include "tandem/tandem.h"

namespace {

thread_local tandem::Allowance threads, mappings, descriptors;

// The function and the argument of a new thread.
struct ThreadStart {
  void* (*start)(void*);
  void* argument;
};

void* RunInBackground(void* data) {
  const ThreadStart run = *static_cast<ThreadStart*>(data);
  std::free(data);
  tandem::BackgroundAllocations::JoinBackground();
  return run.start(run.argument);
}

}  // namespace

extern "C" {
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  if (!threads.Spend()) return EAGAIN;
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  auto* run = static_cast<ThreadStart*>(std::malloc(sizeof(ThreadStart)));
  if (run == nullptr) return EAGAIN;
  *run = {start, argument};
  const int failed = real(thread, attributes, &RunInBackground, run);
  if (failed != 0) std::free(run);
  return failed;
}
void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  if (fd >= 0 && !mappings.Spend()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}
int memfd_create(const char* name, unsigned flags) noexcept {
  if (!descriptors.Spend()) {
    errno = EMFILE;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}
}

namespace tandem::client {
namespace {

// `call`, during which resources may run out.
template <typename Call>
auto InLibrary(Call call) noexcept {
  const InCall in(true);
  return call();
}
#define CALL(expression) InLibrary([&] { return expression; })

// A handle's end.
template <typename Handle>
void Drop(Handle* handle) noexcept {
  const InCall in(true);
  handle->reset();
}

// Every function of a session on the host backend. The first failure; OK if there is none.
Status UseAll() {
  const std::chrono::seconds wait_budget(20);
  const std::vector<int64_t> shape = {64};
  const auto daemon = std::make_shared<FakeDaemon>();
  daemon->lease = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto control = std::make_unique<FakeControl>(daemon);
  const ConnectOptions options;
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  join.name = "a group whose name is too long to lie in a string itself";
  join.world_size = 2;
  OpRequest request;
  request.op = Op::kAllReduce;
  request.operands = {{Role::kInput, {DType::kF32, {64}, {}}}, {Role::kOutput, {DType::kF32, {64}, {}}}};
  const std::string key = "a key that is too long to lie in a string itself", gpu = "GPU-0", name;
  std::function<void(const ClientEvent&)> callback = [](const ClientEvent&) {};
  std::function<void()> work = [] {};

  TANDEM_ASSIGN_OR_RETURN(auto client, CALL(ConnectThrough(std::move(control), options)));
  CALL((client->OnEvent(std::move(callback)), 0));
  TANDEM_ASSIGN_OR_RETURN(auto group, CALL(client->JoinGroup(join)));
  TANDEM_ASSIGN_OR_RETURN(auto tensor, CALL(group->Allocate(shape, DType::kF32, name)));
  TANDEM_ASSIGN_OR_RETURN(std::byte * buffer, CALL(tensor->GetBuffer(1, shape, DType::kF32)));
  if (buffer == nullptr) return Internal("no buffer");
  // Refusals too: their texts need memory.
  if (CALL(tensor->GetBuffer(7, shape, DType::kF32)).ok()) return Internal("a buffer of no rank");
  if (CALL(tensor->PutSignal(7, 0, Milliseconds(0))).ok()) return Internal("a signal to no rank");
  TANDEM_ASSIGN_OR_RETURN(auto memory, CALL(client->AllocateRegistered(4096, gpu)));
  TANDEM_ASSIGN_OR_RETURN(auto plan, CALL(group->Prepare(key, request)));
  TANDEM_ASSIGN_OR_RETURN(auto stream, CALL(HostStream::Create()));
  std::optional<HostEvent> event;
  CALL((event.emplace(), 0));
  TANDEM_RETURN_IF_ERROR(CALL(stream->Record(*event)));
  TANDEM_RETURN_IF_ERROR(CALL(stream->Wait(*event)));
  TANDEM_RETURN_IF_ERROR(CALL(stream->Synchronize(wait_budget)));
  TANDEM_RETURN_IF_ERROR(CALL(stream->BeginCapture()));
  TANDEM_RETURN_IF_ERROR(CALL(stream->Enqueue(std::move(work))));
  TANDEM_ASSIGN_OR_RETURN(HostGraph graph, CALL(stream->EndCapture()));
  auto object = std::make_shared<int>(1);
  TANDEM_RETURN_IF_ERROR(CALL(graph.RetainUserObject(std::move(object))));
  TANDEM_ASSIGN_OR_RETURN(HostGraphExec exec, CALL(graph.Instantiate()));
  TANDEM_RETURN_IF_ERROR(CALL(exec.Launch(*stream)));
  TANDEM_RETURN_IF_ERROR(CALL(stream->Synchronize(wait_budget)));
  PlanInfo described = plan->info();
  described.warnings = {"a warning that is too long to lie in a string itself"};
  (void)CALL(Explain(described));  // empty where memory is out
  const Binding bindings[] = {{.memory = memory.get()}, {.memory = memory.get(), .offset = 1024}};
  const LaunchOptions plain;
  TANDEM_ASSIGN_OR_RETURN(const uint64_t launch, CALL(plan->LaunchWithoutStream(bindings, plain)));
  TANDEM_RETURN_IF_ERROR(CALL(plan->WaitLaunch(launch, wait_budget)));
  TANDEM_RETURN_IF_ERROR(CALL(plan->Wait(wait_budget)));
  Drop(&plan);
  Drop(&memory);
  Drop(&tensor);
  Drop(&group);
  const Status detached = CALL(client->Detach());
  Drop(&client);
  return detached;
}

class ExhaustionTest : public ::testing::Test {
 protected:
  // Makes the calls of UseAll with one place after the other at which `allowance` runs out. Returns how many
  // places there are.
  static int FailEverywhere(Allowance* allowance) {
    constexpr int kMost = 5000;
    for (int place = 0; place < kMost; ++place) {
      *allowance = {.left = place};
      const Status status = UseAll();
      const bool met = allowance->met;
      *allowance = {};
      if (!met) {
        EXPECT_TRUE(status.ok()) << status.ToString();
        return place;
      }
      // A step that nobody waits for may do without.
      EXPECT_TRUE(status.ok() || status.code() == Code::kResourceExhausted)
          << place << ": " << status.ToString();
    }
    ADD_FAILURE() << "more than " << kMost << " places";
    return kMost;
  }
};

// Before any other test: the process's queues are made once.
TEST_F(ExhaustionTest, ThreadsRunOut) {
  EXPECT_GE(FailEverywhere(&threads), 1 + 8) << "the watchdog and the host's queues";
}

TEST_F(ExhaustionTest, MappingsRunOut) { EXPECT_GE(FailEverywhere(&mappings), 3); }

TEST_F(ExhaustionTest, DescriptorsRunOut) { EXPECT_GE(FailEverywhere(&descriptors), 3); }

TEST_F(ExhaustionTest, MemoryRunsOut) { EXPECT_GE(FailEverywhere(&Allocations()), 50); }

// A join and a prepare on threads of the library. The first failure; OK if there is none.
Status UseInBackground() {
  const auto daemon = std::make_shared<FakeDaemon>();
  daemon->lease = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  join.name = "a group whose name is too long to lie in a string itself";
  join.world_size = 2;
  OpRequest request;
  request.op = Op::kAllReduce;
  request.operands = {{Role::kInput, {DType::kF32, {64}, {}}}, {Role::kOutput, {DType::kF32, {64}, {}}}};
  const auto result_of = [](auto& call) {
    pollfd ended = {.fd = call.fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&ended, 1, -1);
    return call.Take();
  };
  TANDEM_ASSIGN_OR_RETURN(auto client, ConnectThrough(std::make_unique<FakeControl>(daemon), {}));
  TANDEM_ASSIGN_OR_RETURN(auto joining, StartJoin(client, join));
  TANDEM_ASSIGN_OR_RETURN(auto group, result_of(joining));
  TANDEM_ASSIGN_OR_RETURN(auto preparing, StartPrepare(group, "a key that is no short one", request));
  TANDEM_ASSIGN_OR_RETURN(auto plan, result_of(preparing));
  TANDEM_RETURN_IF_ERROR(plan->Release());
  return client->Detach();
}

// On the threads of the library: the watchdog, the queues of streams, calls in the background. An exception of
// one of them would end this program.
TEST_F(ExhaustionTest, MemoryRunsOutInTheBackground) {
  constexpr int kMost = 5000;
  int place = 0;
  for (; place < kMost && !HasFailure(); ++place) {
    SCOPED_TRACE(place);
    BackgroundAllocations::Allow(place);
    Status status = UseAll();
    if (status.ok()) status = UseInBackground();
    const bool met = BackgroundAllocations::Met();
    BackgroundAllocations::Allow(-1);
    EXPECT_TRUE(status.ok() || status.code() == Code::kResourceExhausted) << status.ToString();
    if (!met) break;
    // A failed allocation leaves nothing stuck.
    for (const Status& next : {UseAll(), UseInBackground()}) EXPECT_TRUE(next.ok()) << next.ToString();
  }
  EXPECT_GE(place, 20) << "the library's threads need no memory";
  EXPECT_LT(place, kMost);
}

// The C functions, whose statuses need memory themselves.
TEST_F(ExhaustionTest, AStatusOfCNeedsNoMemory) {
  tandem_client* client = nullptr;
  tandem_status *status = nullptr, *null = nullptr;
  {
    const InCall in(true);
    Allocations() = {.left = 0};
    status = tandem_connect("/nonexistent/directory/of/no/daemon", "a client", 1000, &client);
    null = tandem_client_check(nullptr);
    Allocations() = {};
  }
  EXPECT_EQ(tandem_status_code(status), static_cast<int>(Code::kResourceExhausted));
  EXPECT_STREQ(tandem_status_reason(status), "NO_MEMORY");
  EXPECT_EQ(client, nullptr);
  tandem_status_free(status);
  EXPECT_NE(null, nullptr);
  tandem_status_free(null);
}

}  // namespace
}  // namespace tandem::client
