// The C interface where resources run out.
#include <poll.h>

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "client/lib/c_api/c_handles.h"
#include "client/lib/handles.h"
#include "client/tests/exhaustion_calls.h"
#include "common/shared_memory.h"
#include "tandem/tandem.h"

namespace tandem::client {
namespace {

constexpr int64_t kWaitBudgetMs = 20'000;
constexpr size_t kElements = 64;
constexpr int64_t kShape[] = {kElements};
constexpr const char* kCGpu = "GPU-0";

// Frees `status`.
Status Taken(tandem_status* status) {
  if (status == nullptr) return Status::Ok();
  const Status taken = status->status;
  tandem_status_free(status);
  return taken;
}
#define C_CALL(expression) TANDEM_RETURN_IF_ERROR(Taken(CALL(expression)))

// A handle that ends in a tested call.
template <typename Handle, void (*free_handle)(Handle*)>
class Owned {
 public:
  Owned() = default;
  ~Owned() { Free(); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle* get() const { return handle_; }
  Handle** out() { return &handle_; }
  void Free() {
    CALL((free_handle(handle_), 0));
    handle_ = nullptr;
  }

 private:
  Handle* handle_ = nullptr;
};
using OwnedClient = Owned<tandem_client, tandem_client_free>;
using OwnedGroup = Owned<tandem_group, tandem_group_free>;
using OwnedPlan = Owned<tandem_plan, tandem_plan_free>;
using OwnedPreview = Owned<tandem_preview, tandem_preview_free>;
using OwnedMemory = Owned<tandem_memory, tandem_memory_free>;
using OwnedStream = Owned<tandem_stream, tandem_stream_free>;
using OwnedGraph = Owned<tandem_graph, tandem_graph_free>;
using OwnedPending = Owned<tandem_pending, tandem_pending_free>;
using OwnedCancellation = Owned<tandem_cancellation, tandem_cancellation_free>;

// Waits at its end, for calls that have failed behind a launch: operands outlive their launches.
struct SynchronizedStream {
  explicit SynchronizedStream(tandem_stream* own) : stream(own) {}
  ~SynchronizedStream() { tandem_status_free(tandem_stream_synchronize(stream, kWaitBudgetMs)); }
  SynchronizedStream(const SynchronizedStream&) = delete;
  SynchronizedStream& operator=(const SynchronizedStream&) = delete;

  tandem_stream* stream;
};

// A sum of 64 elements.
struct CSum {
  CSum() {
    for (int i = 0; i < 2; ++i) {
      tandem_operand_init(&operands[i], sizeof(operands[i]));
      operands[i].role = i == 0 ? TANDEM_ROLE_INPUT : TANDEM_ROLE_OUTPUT;
      operands[i].dtype = TANDEM_DTYPE_F32;
      operands[i].shape = kShape;
      operands[i].dims = 1;
    }
    tandem_request_init(&request, sizeof(request));
    request.op = TANDEM_OP_ALL_REDUCE;
    request.operands = operands;
    request.operand_count = 2;
  }
  CSum(const CSum&) = delete;
  CSum& operator=(const CSum&) = delete;

  tandem_operand operands[2];
  tandem_request request;
};

struct CJoin {
  explicit CJoin(int world_size) : join(SomeJoin(world_size)) {
    tandem_join_options_init(&options, sizeof(options));
    options.job_key = join.job_key.data();
    options.job_key_bytes = join.job_key.size();
    options.name = join.name.c_str();
    options.world_size = world_size;
  }
  CJoin(const CJoin&) = delete;
  CJoin& operator=(const CJoin&) = delete;

  const JoinOptions join;
  tandem_join_options options;
};

Status Connect(const std::shared_ptr<FakeDaemon>& daemon, OwnedClient* client) {
  auto control = std::make_unique<FakeControl>(daemon);
  TANDEM_ASSIGN_OR_RETURN(auto connected, CALL(ConnectThrough(std::move(control), {})));
  *client->out() = new tandem_client{.client = std::move(connected)};
  return Status::Ok();
}

Status UseMemory(tandem_client* client, tandem_group* group) {
  OwnedMemory tensor, met, registered, own;
  uint64_t empty = 0;
  C_CALL(tandem_allocate(group, kShape, 1, TANDEM_DTYPE_F32, nullptr, kWaitBudgetMs, tensor.out()));
  C_CALL(tandem_empty(client, kShape, 1, TANDEM_DTYPE_F32, kCGpu, nullptr, &empty));
  C_CALL(tandem_rendezvous(client, empty, group, kWaitBudgetMs, met.out()));
  void* buffer = nullptr;
  C_CALL(tandem_tensor_get_buffer(met.get(), 1, kShape, 1, TANDEM_DTYPE_F32, 0, &buffer));
  uint32_t* words = nullptr;
  size_t count = 0;
  C_CALL(tandem_tensor_signal_pad(tensor.get(), 1, &words, &count));
  if (Taken(CALL(tandem_tensor_put_signal(tensor.get(), 7, 0, kWaitBudgetMs))).ok())
    return Internal("a signal to no rank");
  C_CALL(tandem_allocate_registered(client, 4096, kCGpu, own.out()));
  TANDEM_ASSIGN_OR_RETURN(const UniqueFd fd, CreateSealedMemfd("registered", 4096));
  C_CALL(tandem_register_fd(client, fd.get(), 4096, kCGpu, registered.out()));
  tandem_memory_usage usage;
  tandem_memory_usage_init(&usage, sizeof(usage));
  C_CALL(tandem_client_memory(client, &usage));
  C_CALL(tandem_group_memory(group, &usage));
  met.Free();
  C_CALL(tandem_free_tensor(client, empty));
  return Status::Ok();
}

Status UseEnginePlan() {
  OwnedClient client;
  TANDEM_RETURN_IF_ERROR(Connect(MakeFakeDaemon(), &client));
  CALL((tandem_client_on_event(
            client.get(), [](void*, int, uint64_t, int, const tandem_status*) {}, nullptr),
        0));
  const CJoin join(2);
  const CSum sum;
  OwnedGroup group;
  C_CALL(tandem_join_group(client.get(), &join.options, group.out()));
  TANDEM_RETURN_IF_ERROR(UseMemory(client.get(), group.get()));
  OwnedPlan plan;
  C_CALL(tandem_prepare(group.get(), kLongKey.c_str(), &sum.request, kWaitBudgetMs, plan.out()));
  (void)CALL(tandem_plan_explanation(plan.get()));  // empty where memory is out
  (void)CALL(tandem_plan_json(plan.get()));
  OwnedMemory memory;
  C_CALL(tandem_allocate_registered(client.get(), 4096, kCGpu, memory.out()));
  const tandem_binding bindings[] = {{memory.get(), 0, nullptr}, {memory.get(), 1024, nullptr}};
  uint64_t launch = 0;
  C_CALL(tandem_launch_without_stream(plan.get(), bindings, 2, 0, kLongKey.c_str(), &launch));
  C_CALL(tandem_wait_launch(plan.get(), launch, kWaitBudgetMs));
  C_CALL(tandem_plan_release(plan.get()));
  C_CALL(tandem_client_check(client.get()));
  return Taken(CALL(tandem_client_detach(client.get())));
}

Status UseCCollectives(tandem_group* group, tandem_stream* stream) {
  const std::vector<float> input(kElements, 3.0f);
  for (const int op : {TANDEM_OP_ALL_REDUCE, TANDEM_OP_ALL_GATHER, TANDEM_OP_REDUCE_SCATTER,
                       TANDEM_OP_ALL_TO_ALL, TANDEM_OP_BROADCAST, TANDEM_OP_REDUCE}) {
    std::vector<float> output(kElements, -1.0f);
    const SynchronizedStream synchronized(stream);
    tandem_collective collective;
    tandem_collective_init(&collective, sizeof(collective));
    collective.op = op;
    collective.input = input.data();
    collective.output = output.data();
    collective.count = kElements;
    C_CALL(tandem_collective_prepare(group, &collective, kWaitBudgetMs));
    C_CALL(tandem_collective_launch(group, &collective, stream));
    C_CALL(tandem_stream_synchronize(stream, kWaitBudgetMs));
    C_CALL(tandem_collectives_wait(group, kWaitBudgetMs));
    int ended = 0;
    C_CALL(tandem_collectives_query(group, &ended));
    if (ended != 1 || output != input) return Internal("a wrong collective");
  }
  return Status::Ok();
}

Status UseCGraph(tandem_plan* plan, tandem_stream* stream, const tandem_binding* bindings) {
  OwnedGraph graph;
  C_CALL(tandem_stream_begin_capture(stream));
  const Status launched = Taken(CALL(tandem_launch(plan, stream, bindings, 2, 0, nullptr)));
  const Status ended = Taken(CALL(tandem_stream_end_capture(stream, graph.out())));
  TANDEM_RETURN_IF_ERROR(launched);
  TANDEM_RETURN_IF_ERROR(ended);
  C_CALL(tandem_graph_launch(graph.get(), stream));
  C_CALL(tandem_stream_synchronize(stream, kWaitBudgetMs));
  return Taken(CALL(tandem_plan_wait(plan, kWaitBudgetMs)));
}

Status UseClientPlan() {
  TANDEM_ASSIGN_OR_RETURN(const auto daemon, MakePlacingDaemon());
  OwnedClient client;
  TANDEM_RETURN_IF_ERROR(Connect(daemon, &client));
  OwnedCancellation cancellation;
  C_CALL(tandem_cancellation_create(cancellation.out()));
  CALL((tandem_cancellation_use(cancellation.get()), 0));
  CALL((tandem_cancellation_use(nullptr), 0));
  const CJoin join(1);
  const CSum sum;
  OwnedGroup group;
  C_CALL(tandem_join_group(client.get(), &join.options, group.out()));
  OwnedPreview preview;
  C_CALL(tandem_preview_plan(group.get(), &sum.request, preview.out()));
  OwnedPlan plan;
  C_CALL(tandem_prepare(group.get(), kLongKey.c_str(), &sum.request, kWaitBudgetMs, plan.out()));
  OwnedStream stream;
  C_CALL(tandem_stream_create(stream.out()));
  const std::vector<float> input(kElements, 2.0f);
  std::vector<float> output(kElements);
  const SynchronizedStream synchronized(stream.get());
  const tandem_binding bindings[] = {{nullptr, 0, input.data()}, {nullptr, 0, output.data()}};
  tandem_launch_options options;
  tandem_launch_options_init(&options, sizeof(options));
  options.tag = kLongKey.c_str();
  C_CALL(tandem_launch_with_options(plan.get(), stream.get(), bindings, 2, &options));
  C_CALL(tandem_stream_synchronize(stream.get(), kWaitBudgetMs));
  int ended = 0;
  C_CALL(tandem_plan_query(plan.get(), &ended));
  if (ended != 1 || output != input) return Internal("a wrong sum");
  TANDEM_RETURN_IF_ERROR(UseCGraph(plan.get(), stream.get(), bindings));
  C_CALL(tandem_group_renew(group.get(), kWaitBudgetMs));
  C_CALL(tandem_group_suspend(group.get(), 1, kWaitBudgetMs));
  C_CALL(tandem_group_resume(group.get(), kWaitBudgetMs));
  TANDEM_RETURN_IF_ERROR(UseCCollectives(group.get(), stream.get()));
  C_CALL(tandem_group_leave(group.get(), kWaitBudgetMs));
  return Taken(CALL(tandem_client_detach(client.get())));
}

Status UsePending() {
  OwnedClient client;
  TANDEM_RETURN_IF_ERROR(Connect(MakeFakeDaemon(), &client));
  const CJoin join(2);
  const CSum sum;
  const auto await = [](const OwnedPending& pending) {
    pollfd ended = {.fd = tandem_pending_fd(pending.get()), .events = POLLIN, .revents = 0};
    (void)::poll(&ended, 1, -1);
  };
  OwnedPending joining, preparing;
  OwnedGroup group;
  C_CALL(tandem_join_group_start(client.get(), &join.options, joining.out()));
  await(joining);
  C_CALL(tandem_pending_take_group(joining.get(), group.out()));
  C_CALL(tandem_prepare_start(group.get(), kLongKey.c_str(), &sum.request, kWaitBudgetMs, preparing.out()));
  await(preparing);
  OwnedPlan plan;
  return Taken(CALL(tandem_pending_take_plan(preparing.get(), plan.out())));
}

}  // namespace

Status UseCInterface() {
  TANDEM_RETURN_IF_ERROR(UseEnginePlan());
  TANDEM_RETURN_IF_ERROR(UseClientPlan());
  return UsePending();
}

}  // namespace tandem::client
