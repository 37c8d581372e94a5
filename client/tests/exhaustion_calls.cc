#include "client/tests/exhaustion_calls.h"

#include <fcntl.h>
#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "client/lib/handles.h"
#include "client/tests/group_plans.h"
#include "tandem/collectives.h"
#include "tandem/host_stream.h"
#include "tandem/pending.h"

namespace tandem::client {
namespace {

constexpr std::chrono::seconds kWaitBudget(20);
const std::string kGpu = "GPU-0";

// Waits at its end, for calls that have failed behind a launch: operands outlive their launches.
struct SynchronizedAtEnd {
  explicit SynchronizedAtEnd(HostStream& own) : stream(own) {}
  ~SynchronizedAtEnd() { (void)stream.Synchronize(kWaitBudget); }
  SynchronizedAtEnd(const SynchronizedAtEnd&) = delete;
  SynchronizedAtEnd& operator=(const SynchronizedAtEnd&) = delete;

  HostStream& stream;
};

// A graph of one launch.
Status UseGraph(HostStream& stream, const std::function<Status()>& launch) {
  TANDEM_RETURN_IF_ERROR(CALL(stream.BeginCapture()));
  const Status launched = CALL(launch());
  Result<HostGraph> graph = CALL(stream.EndCapture());
  TANDEM_RETURN_IF_ERROR(launched);
  TANDEM_RETURN_IF_ERROR(graph.status());
  auto object = std::make_shared<int>(1);
  TANDEM_RETURN_IF_ERROR(CALL(graph->RetainUserObject(std::move(object))));
  TANDEM_ASSIGN_OR_RETURN(HostGraphExec exec, CALL(graph->Instantiate()));
  TANDEM_RETURN_IF_ERROR(CALL(exec.Launch(stream)));
  return CALL(stream.Synchronize(kWaitBudget));
}

// Every kind of collective. In a group of one rank each copies.
Status UseCollectives(const std::shared_ptr<Group>& group, HostStream& stream) {
  constexpr size_t kCount = 32;
  const std::vector<float> input(kCount, 3.0f);
  TANDEM_ASSIGN_OR_RETURN(auto collectives, CALL(Collectives::Make(group)));
  for (const Op op :
       {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kAllToAll, Op::kBroadcast, Op::kReduce}) {
    std::vector<float> output(kCount, -1.0f);
    const SynchronizedAtEnd synchronized(stream);
    const CollectiveCall collective{
        .op = op, .input = input.data(), .output = output.data(), .count = kCount};
    TANDEM_RETURN_IF_ERROR(CALL(collectives->Prepare(collective)));
    TANDEM_RETURN_IF_ERROR(CALL(collectives->Launch(&stream, collective)));
    TANDEM_RETURN_IF_ERROR(CALL(stream.Synchronize(kWaitBudget)));
    TANDEM_RETURN_IF_ERROR(CALL(collectives->Wait(kWaitBudget)));
    TANDEM_ASSIGN_OR_RETURN(const bool ended, CALL(collectives->Query()));
    if (!ended || output != input) return Internal("a wrong collective");
  }
  Drop(&collectives);
  return Status::Ok();
}

}  // namespace

std::shared_ptr<FakeDaemon> MakeFakeDaemon() {
  const auto daemon = std::make_shared<FakeDaemon>();
  daemon->lease = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return daemon;
}

Result<std::shared_ptr<FakeDaemon>> MakePlacingDaemon() {
  const std::shared_ptr<FakeDaemon> daemon = MakeFakeDaemon();
  TANDEM_ASSIGN_OR_RETURN(GroupPlans made, GroupPlans::Make(1));
  daemon->place = [plans = std::make_shared<GroupPlans>(std::move(made))](uint64_t,
                                                                          const OpRequest& request) {
    const InCall in(false);  // the planner is the daemon's
    return plans->Place(0, request);
  };
  return daemon;
}

JoinOptions SomeJoin(int world_size) {
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  join.name = "a group whose name is too long to lie in a string itself";
  join.world_size = world_size;
  return join;
}

OpRequest SomeSum() {
  OpRequest request;
  request.op = Op::kAllReduce;
  request.operands = {{Role::kInput, {DType::kF32, {64}, {}}}, {Role::kOutput, {DType::kF32, {64}, {}}}};
  return request;
}

Status UseSession() {
  const std::vector<int64_t> shape = {64};
  auto control = std::make_unique<FakeControl>(MakeFakeDaemon());
  const ConnectOptions options;
  const JoinOptions join = SomeJoin(2);
  const OpRequest request = SomeSum();
  const std::string name;
  std::function<void(const ClientEvent&)> callback = [](const ClientEvent&) {};

  TANDEM_ASSIGN_OR_RETURN(auto client, CALL(ConnectThrough(std::move(control), options)));
  CALL((client->OnEvent(std::move(callback)), 0));
  TANDEM_ASSIGN_OR_RETURN(auto group, CALL(client->JoinGroup(join)));
  TANDEM_ASSIGN_OR_RETURN(auto tensor, CALL(group->Allocate(shape, DType::kF32, name)));
  TANDEM_ASSIGN_OR_RETURN(const uint64_t empty, CALL(client->Empty(shape, DType::kF32, kGpu, name)));
  TANDEM_ASSIGN_OR_RETURN(auto met, CALL(client->Rendezvous(empty, group)));
  TANDEM_ASSIGN_OR_RETURN(std::byte * buffer, CALL(met->GetBuffer(1, shape, DType::kF32)));
  if (buffer == nullptr) return Internal("no buffer");
  // Refusals too: their texts need memory.
  if (CALL(tensor->GetBuffer(7, shape, DType::kF32)).ok()) return Internal("a buffer of no rank");
  if (CALL(tensor->PutSignal(7, 0, Milliseconds(0))).ok()) return Internal("a signal to no rank");
  TANDEM_ASSIGN_OR_RETURN(auto memory, CALL(client->AllocateRegistered(4096, kGpu)));
  TANDEM_ASSIGN_OR_RETURN(auto plan, CALL(group->Prepare(kLongKey, request)));
  TANDEM_ASSIGN_OR_RETURN(auto stream, CALL(HostStream::Create()));
  std::optional<HostEvent> event;
  CALL((event.emplace(), 0));
  TANDEM_RETURN_IF_ERROR(CALL(stream->Record(*event)));
  TANDEM_RETURN_IF_ERROR(CALL(stream->Wait(*event)));
  TANDEM_RETURN_IF_ERROR(CALL(stream->Synchronize(kWaitBudget)));
  TANDEM_RETURN_IF_ERROR(UseGraph(*stream, [&] { return stream->Enqueue([] {}); }));
  PlanInfo described = plan->info();
  described.warnings = {"a warning that is too long to lie in a string itself"};
  (void)CALL(Explain(described));  // empty where memory is out
  const Binding bindings[] = {{.memory = memory.get()}, {.memory = memory.get(), .offset = 1024}};
  const LaunchOptions plain;
  TANDEM_ASSIGN_OR_RETURN(const uint64_t launch, CALL(plan->LaunchWithoutStream(bindings, plain)));
  TANDEM_RETURN_IF_ERROR(CALL(plan->WaitLaunch(launch, kWaitBudget)));
  TANDEM_RETURN_IF_ERROR(CALL(plan->Wait(kWaitBudget)));
  TANDEM_RETURN_IF_ERROR(CALL(client->Check()));
  Drop(&plan);
  Drop(&memory);
  Drop(&met);
  TANDEM_RETURN_IF_ERROR(CALL(client->Free(empty)));
  Drop(&tensor);
  Drop(&group);
  const Status detached = CALL(client->Detach());
  Drop(&client);
  return detached;
}

Status UseClientPlans() {
  TANDEM_ASSIGN_OR_RETURN(const auto daemon, MakePlacingDaemon());
  auto control = std::make_unique<FakeControl>(daemon);
  const ConnectOptions options;
  const JoinOptions join = SomeJoin(1);
  const OpRequest request = SomeSum();
  std::vector<float> input(64, 2.0f), output(64);
  const Binding bindings[] = {{.pointer = input.data()}, {.pointer = output.data()}};
  const LaunchOptions tagged{.tag = kLongKey};

  TANDEM_ASSIGN_OR_RETURN(auto client, CALL(ConnectThrough(std::move(control), options)));
  TANDEM_ASSIGN_OR_RETURN(auto group, CALL(client->JoinGroup(join)));
  TANDEM_ASSIGN_OR_RETURN(const PlanInfo preview, CALL(group->Preview(request)));
  if (preview.op != request.op) return Internal("a preview of another request");
  TANDEM_ASSIGN_OR_RETURN(auto plan, CALL(group->Prepare(kLongKey, request)));
  TANDEM_ASSIGN_OR_RETURN(auto stream, CALL(HostStream::Create()));
  const SynchronizedAtEnd synchronized(*stream);
  const auto launch = [&]() -> Status {
    std::fill(output.begin(), output.end(), 0.0f);
    TANDEM_RETURN_IF_ERROR(CALL(plan->Launch(stream.get(), bindings, tagged)));
    TANDEM_RETURN_IF_ERROR(CALL(stream->Synchronize(kWaitBudget)));
    TANDEM_RETURN_IF_ERROR(CALL(plan->Wait(kWaitBudget)));
    TANDEM_ASSIGN_OR_RETURN(const bool ended, CALL(plan->Query()));
    return ended && output == input ? Status::Ok() : Internal("a wrong sum");
  };
  TANDEM_RETURN_IF_ERROR(launch());
  TANDEM_RETURN_IF_ERROR(UseGraph(*stream, [&] { return plan->Launch(stream.get(), bindings); }));
  TANDEM_RETURN_IF_ERROR(CALL(plan->Wait(kWaitBudget)));
  // A launch that is refused, and so its group.
  if (CALL(plan->Launch(stream.get(), {})).ok()) return Internal("a launch without operands");
  TANDEM_RETURN_IF_ERROR(CALL(group->Renew(kWaitBudget)));
  TANDEM_RETURN_IF_ERROR(launch());
  TANDEM_RETURN_IF_ERROR(CALL(group->Suspend(/*keep=*/true, kWaitBudget)));
  TANDEM_RETURN_IF_ERROR(CALL(group->Resume(kWaitBudget)));
  TANDEM_RETURN_IF_ERROR(launch());
  TANDEM_RETURN_IF_ERROR(UseCollectives(group, *stream));
  for (const auto& used : {CALL(group->UsedMemory()), CALL(client->UsedMemory())}) {
    TANDEM_RETURN_IF_ERROR(used.status());
    if (used->signal_bytes == 0) return Internal("the plan's words are not counted");
  }
  TANDEM_RETURN_IF_ERROR(CALL(plan->Release()));
  Drop(&plan);
  TANDEM_RETURN_IF_ERROR(CALL(group->Leave(kWaitBudget)));
  Drop(&group);
  const Status detached = CALL(client->Detach());
  Drop(&client);
  return detached;
}

Status UseInBackground() {
  const auto result_of = [](auto& call) {
    pollfd ended = {.fd = call.fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&ended, 1, -1);
    return call.Take();
  };
  TANDEM_ASSIGN_OR_RETURN(auto client, ConnectThrough(std::make_unique<FakeControl>(MakeFakeDaemon()), {}));
  TANDEM_ASSIGN_OR_RETURN(auto joining, StartJoin(client, SomeJoin(2)));
  TANDEM_ASSIGN_OR_RETURN(auto group, result_of(joining));
  TANDEM_ASSIGN_OR_RETURN(auto preparing, StartPrepare(group, kLongKey, SomeSum()));
  TANDEM_ASSIGN_OR_RETURN(auto plan, result_of(preparing));
  TANDEM_RETURN_IF_ERROR(plan->Release());
  return client->Detach();
}

}  // namespace tandem::client
