/* The C interface, compiled as C: without a daemon, every call that needs one says so in a status. */
#include <stdio.h>
#include <string.h>

#include "tandem/tandem.h"

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                       \
    }                                                                 \
  } while (0)

static void AddOne(void* user) { ++*(int*)user; }

/* Every function with NULL for its handle and for its output arguments: INVALID_ARGUMENT, or a neutral value.
 */
#define REFUSES(field, call)                                        \
  do {                                                              \
    tandem_status* refused = (call);                                \
    CHECK(tandem_status_code(refused) == TANDEM_INVALID_ARGUMENT);  \
    CHECK(strcmp(tandem_status_field(refused), field) == 0);        \
    CHECK(strcmp(tandem_status_reason(refused), "BAD_FIELD") == 0); \
    tandem_status_free(refused);                                    \
  } while (0)

/* A runtime with an exception under way, which counts what is asked of it. */
static int g_running = 1, g_entered = 0, g_released = 0;
static void* g_exception = NULL;
static int IsRunning(void) { return g_running; }
static int Enter(void) { return ++g_entered; }
static void Leave(int entered) { g_entered -= entered; }
static void SetAside(void** type, void** value, void** trace) {
  *type = g_exception;
  *value = *trace = NULL;
  g_exception = NULL;
}
static void BringBack(void* type, void* value, void* trace) {
  g_exception = value == NULL && trace == NULL ? type : NULL;
}
/* Overwrites the struct, which may end with its object. */
static void Release(void* object) {
  g_released += g_exception == NULL && g_entered == 1;
  memset(object, 0xFF, sizeof(tandem_dlpack_owner));
}

static int DlpackOwners(void) {
  tandem_dlpack_owner owner = {NULL, Release, IsRunning, Enter, Leave, SetAside, BringBack};
  void* managed[8] = {NULL}; /* a DLManagedTensor: manager_ctx is its seventh word */
  int exception = 0;
  owner.object = &owner;
  managed[6] = &owner;
  g_exception = &exception;
  tandem_dlpack_delete(managed);
  CHECK(g_released == 1 && g_entered == 0 && g_exception == &exception);
  owner = (tandem_dlpack_owner){&owner, Release, IsRunning, Enter, Leave, SetAside, BringBack};
  g_running = 0;
  tandem_dlpack_delete(managed);
  tandem_dlpack_delete(NULL);
  CHECK(g_released == 1 && owner.object == &owner);
  return 0;
}

static int NullStatuses(void) {
  int rank = 7;
  CHECK(tandem_status_code(NULL) == TANDEM_OK && strcmp(tandem_status_message(NULL), "") == 0);
  CHECK(strcmp(tandem_status_reason(NULL), "") == 0 && strcmp(tandem_status_who(NULL), "") == 0);
  CHECK(strcmp(tandem_status_field(NULL), "") == 0);
  CHECK(tandem_status_started(NULL) == -1 && tandem_status_ranks(NULL, &rank, 1) == 0 && rank == 7);
  CHECK(tandem_status_ranks(NULL, NULL, 0) == 0 && tandem_status_pid(NULL) == 0 &&
        tandem_status_gpu(NULL) == -1);
  CHECK(tandem_status_limit(NULL) == 0 && tandem_status_usage(NULL) == 0);
  tandem_status_free(NULL);
  return 0;
}

static int NullSessions(void) {
  tandem_client* client = (tandem_client*)&client;
  tandem_group* group = (tandem_group*)&group;
  tandem_join_options join;
  tandem_join_options_init(&join, sizeof(join));
  tandem_join_options_init(NULL, sizeof(join));
  REFUSES("client", tandem_connect(NULL, NULL, 1, NULL));
  tandem_client_free(NULL);
  CHECK(tandem_client_session_id(NULL) == 0 && strcmp(tandem_client_backend(NULL), "") == 0);
  CHECK(strcmp(tandem_client_daemon_version(NULL), "") == 0 && tandem_client_gpu_count(NULL) == 0);
  CHECK(tandem_client_gpu_uuid(NULL, 0) == NULL);
  REFUSES("uuid", tandem_cuda_device_uuid(0, NULL, 64));
  REFUSES("client", tandem_client_check(NULL));
  REFUSES("client", tandem_client_detach(NULL));
  tandem_client_on_event(NULL, NULL, NULL);
  REFUSES("client", tandem_join_group(NULL, &join, &group));
  CHECK(group == NULL);
  tandem_group_free(NULL);
  CHECK(tandem_group_id(NULL) == 0 && tandem_group_rank(NULL) == -1 && tandem_group_world_size(NULL) == 0);
  CHECK(tandem_group_incarnation(NULL) == 0 && strcmp(tandem_group_gpu_uuid(NULL), "") == 0);
  CHECK(strcmp(tandem_group_topology_class(NULL), "") == 0 && tandem_group_links(NULL, 0, 0) == 0);
  REFUSES("group", tandem_group_leave(NULL, 1));
  REFUSES("group", tandem_group_renew(NULL, 1));
  REFUSES("group", tandem_group_suspend(NULL, 0, 1));
  REFUSES("group", tandem_group_resume(NULL, 1));
  REFUSES("client", tandem_client_suspend(NULL, 0, 1));
  REFUSES("client", tandem_client_resume(NULL, 1));
  return 0;
}

static int NullMemory(void) {
  const int64_t shape[] = {1};
  tandem_memory* memory = NULL;
  uint64_t id = 0;
  uint32_t* words;
  size_t count;
  void* buffer;
  tandem_memory_usage usage;
  memset(&usage, 0xFF, sizeof(usage));
  tandem_memory_usage_init(NULL, sizeof(usage));
  tandem_memory_usage_init(&usage, sizeof(usage));
  CHECK(usage.struct_size == sizeof(usage) && usage.symmetric_bytes == 0 && usage.host_bytes == 0);
  REFUSES("client", tandem_client_memory(NULL, &usage));
  REFUSES("group", tandem_group_memory(NULL, &usage));
  REFUSES("group", tandem_allocate(NULL, shape, 1, TANDEM_DTYPE_F32, NULL, 1, &memory));
  REFUSES("client", tandem_empty(NULL, shape, 1, TANDEM_DTYPE_F32, "GPU-0", NULL, &id));
  REFUSES("client", tandem_rendezvous(NULL, 1, NULL, 1, &memory));
  REFUSES("client", tandem_free_tensor(NULL, 1));
  REFUSES("client", tandem_register_fd(NULL, 0, 1, "GPU-0", &memory));
  REFUSES("client", tandem_allocate_registered(NULL, 1, "GPU-0", &memory));
  REFUSES("client", tandem_register_cuda(NULL, &id, 1, &memory));
  tandem_memory_free(NULL);
  CHECK(tandem_memory_data(NULL) == NULL && tandem_memory_bytes(NULL) == 0);
  CHECK(tandem_memory_registration_id(NULL) == 0 && tandem_tensor_channels(NULL) == 0);
  REFUSES("tensor", tandem_tensor_get_buffer(NULL, 0, shape, 1, TANDEM_DTYPE_F32, 0, &buffer));
  REFUSES("buffer", tandem_tensor_get_buffer(NULL, 0, shape, 1, TANDEM_DTYPE_F32, 0, NULL));
  REFUSES("tensor", tandem_tensor_signal_pad(NULL, 0, &words, &count));
  REFUSES("tensor", tandem_tensor_put_signal(NULL, 0, 0, 1));
  REFUSES("tensor", tandem_tensor_wait_signal(NULL, 0, 0, 1));
  REFUSES("tensor", tandem_tensor_barrier(NULL, 0, 1));
  REFUSES("stream", tandem_tensor_memset32(NULL, NULL, 0, 0, 0, 1));
  REFUSES("tensor", tandem_tensor_memset32_cuda(NULL, NULL, 0, 0, 0, 1));
  REFUSES("tensor", tandem_tensor_write32_cuda(NULL, NULL, 0, 0, 0));
  return 0;
}

static int NullPlans(void) {
  const tandem_binding binding = {NULL, 0, NULL};
  tandem_request request;
  tandem_plan* plan = NULL;
  tandem_preview* preview = (tandem_preview*)&preview;
  uint64_t launch = 0;
  int ended = 7;
  void* pointer = NULL;
  tandem_request_init(&request, sizeof(request));
  tandem_request_init(NULL, sizeof(request));
  tandem_operand_init(NULL, sizeof(tandem_operand));
  REFUSES("group", tandem_prepare(NULL, "key", &request, 1, &plan));
  tandem_plan_free(NULL);
  CHECK(tandem_plan_id(NULL) == 0 && tandem_plan_algorithm(NULL) == TANDEM_ALGORITHM_AUTO);
  CHECK(strcmp(tandem_plan_reason(NULL), "") == 0 && strcmp(tandem_plan_summary(NULL), "") == 0);
  CHECK(strcmp(tandem_plan_explanation(NULL), "") == 0 && strcmp(tandem_plan_json(NULL), "{}") == 0);
  CHECK(tandem_plan_slots(NULL) == 0 && tandem_plan_slot_bytes(NULL, 0) == 0);
  REFUSES("stream", tandem_launch(NULL, NULL, &binding, 1, 0, NULL));
  REFUSES("plan", tandem_launch_cuda(NULL, NULL, &binding, 1, 0, NULL));
  REFUSES("plan", tandem_launch_cuda_pointers(NULL, NULL, &pointer, 1, 0, NULL));
  REFUSES("plan", tandem_launch_without_stream(NULL, &binding, 1, 0, NULL, &launch));
  REFUSES("plan", tandem_wait_launch(NULL, 1, 1));
  REFUSES("plan", tandem_plan_wait(NULL, 1));
  REFUSES("plan", tandem_plan_query(NULL, &ended));
  CHECK(ended == 7);
  REFUSES("plan", tandem_plan_release(NULL));
  REFUSES("group", tandem_preview_plan(NULL, &request, &preview));
  CHECK(preview == NULL);
  tandem_preview_free(NULL);
  CHECK(tandem_preview_algorithm(NULL) == TANDEM_ALGORITHM_AUTO && tandem_preview_fused(NULL) == 0);
  CHECK(tandem_preview_placement(NULL) == TANDEM_PLACEMENT_AUTO && tandem_preview_predicted_us(NULL) == 0);
  CHECK(strcmp(tandem_preview_reason(NULL), "") == 0 && strcmp(tandem_preview_explanation(NULL), "") == 0);
  CHECK(strcmp(tandem_preview_json(NULL), "{}") == 0);
  return 0;
}

static int NullCollectives(void) {
  tandem_collective collective;
  float value = 1;
  int ended = 7;
  tandem_collective_init(NULL, sizeof(collective));
  tandem_collective_init(&collective, sizeof(collective));
  CHECK(collective.op == TANDEM_OP_ALL_REDUCE && collective.count == 0 && collective.input == NULL);
  REFUSES("group", tandem_all_reduce(NULL, &value, &value, 1, TANDEM_DTYPE_F32, 0, NULL));
  REFUSES("group", tandem_all_gather(NULL, &value, &value, 1, TANDEM_DTYPE_F32, NULL));
  REFUSES("group", tandem_reduce_scatter(NULL, &value, &value, 1, TANDEM_DTYPE_F32, 0, NULL));
  REFUSES("group", tandem_all_to_all(NULL, &value, &value, 1, TANDEM_DTYPE_F32, NULL));
  REFUSES("group", tandem_broadcast(NULL, &value, &value, 1, TANDEM_DTYPE_F32, 0, NULL));
  REFUSES("group", tandem_reduce(NULL, &value, &value, 1, TANDEM_DTYPE_F32, 0, 0, NULL));
  REFUSES("group", tandem_collective_prepare(NULL, &collective, 1));
  REFUSES("group", tandem_collective_launch(NULL, &collective, NULL));
  REFUSES("group", tandem_collectives_wait(NULL, 1));
  REFUSES("group", tandem_collectives_query(NULL, &ended));
  CHECK(ended == 7);
  return 0;
}

static void CountLine(void* user, int level, const char* text) {
  *(int*)user += level >= TANDEM_LOG_DEBUG && text[0] != '\0';
}

static int LogCallbacks(void) {
  static int lines = 0;
  REFUSES("least_level", tandem_set_log_callback(CountLine, &lines, TANDEM_LOG_ERROR + 1));
  REFUSES("least_level", tandem_set_log_callback(CountLine, &lines, -1));
  CHECK(tandem_set_log_callback(CountLine, &lines, TANDEM_LOG_DEBUG) == NULL);
  CHECK(tandem_set_log_callback(NULL, NULL, TANDEM_LOG_INFO) == NULL);
  return 0;
}

static int NullPendings(void) {
  tandem_pending* pending = (tandem_pending*)&pending;
  tandem_group* group = NULL;
  tandem_plan* plan = NULL;
  tandem_join_options join;
  tandem_request request;
  tandem_join_options_init(&join, sizeof(join));
  tandem_request_init(&request, sizeof(request));
  REFUSES("client", tandem_join_group_start(NULL, &join, &pending));
  CHECK(pending == NULL);
  REFUSES("group", tandem_prepare_start(NULL, "key", &request, 1, &pending));
  CHECK(tandem_pending_fd(NULL) == -1 && tandem_pending_ended(NULL) == 1);
  tandem_pending_cancel(NULL);
  REFUSES("pending", tandem_pending_take_group(NULL, &group));
  REFUSES("pending", tandem_pending_take_plan(NULL, &plan));
  tandem_pending_free(NULL);
  REFUSES("group", tandem_group_notify(NULL, NULL, 0));
  return 0;
}

static int NullStreams(void) {
  tandem_graph* graph = (tandem_graph*)&graph;
  REFUSES("stream", tandem_stream_create(NULL));
  tandem_stream_free(NULL);
  REFUSES("stream", tandem_stream_enqueue(NULL, AddOne, NULL));
  REFUSES("stream", tandem_stream_synchronize(NULL, 1));
  REFUSES("stream", tandem_stream_begin_capture(NULL));
  REFUSES("stream", tandem_stream_end_capture(NULL, &graph));
  CHECK(graph == NULL);
  REFUSES("graph", tandem_graph_launch(NULL, NULL));
  tandem_graph_free(NULL);
  return 0;
}

static int Cancellations(void) {
  tandem_cancellation* cancellation = NULL;
  REFUSES("cancellation", tandem_cancellation_create(NULL));
  tandem_cancellation_use(NULL);
  tandem_cancellation_cancel(NULL);
  tandem_cancellation_free(NULL);
  CHECK(tandem_cancellation_create(&cancellation) == NULL);
  tandem_cancellation_use(cancellation);
  tandem_cancellation_cancel(cancellation);
  tandem_cancellation_cancel(cancellation);
  tandem_cancellation_free(cancellation); /* while it is in use */
  tandem_cancellation_use(NULL);
  return 0;
}

int main(void) {
  tandem_client* client = (tandem_client*)&client;
  tandem_stream* stream = NULL;
  tandem_graph* graph = NULL;
  tandem_request request;
  int count = 0;

  CHECK(tandem_abi_version() == TANDEM_ABI_VERSION);
  CHECK(tandem_version() != NULL && strncmp(tandem_version(), "0.", 2) == 0);
  CHECK(tandem_protocol_version() > 0);
  char version[32];
  (void)snprintf(version, sizeof(version), "%d.%d.%d+", TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR,
                 TANDEM_VERSION_PATCH);
  CHECK(strncmp(tandem_version(), version, strlen(version)) == 0);
  if (NullStatuses() || NullSessions() || NullMemory() || NullPlans() || NullCollectives() ||
      LogCallbacks() || NullPendings() || NullStreams() || DlpackOwners() || Cancellations())
    return 1;

  tandem_status* status = tandem_connect("/nonexistent", "c-test", 1000, &client);
  CHECK(status != NULL && client == NULL);
  CHECK(tandem_status_code(status) == TANDEM_UNAVAILABLE);
  CHECK(strcmp(tandem_status_reason(status), "NO_DAEMON") == 0);
  CHECK(strstr(tandem_status_message(status), "/nonexistent/lease.sock") != NULL);
  tandem_status_free(status);

  tandem_request_init(&request, sizeof(request));
  CHECK(request.fast_accumulation == 1 && request.operand_count == 0 &&
        request.on_unfused == TANDEM_ON_UNFUSED_WARN);

  CHECK(tandem_stream_create(&stream) == NULL);
  CHECK(tandem_stream_enqueue(stream, AddOne, &count) == NULL);
  CHECK(tandem_stream_synchronize(stream, TANDEM_DEFAULT_DEADLINE) == NULL);
  CHECK(count == 1);
  CHECK(tandem_stream_begin_capture(stream) == NULL);
  CHECK(tandem_stream_enqueue(stream, AddOne, &count) == NULL);
  CHECK(tandem_stream_end_capture(stream, &graph) == NULL);
  CHECK(tandem_graph_launch(graph, stream) == NULL);
  CHECK(tandem_graph_launch(graph, stream) == NULL);
  CHECK(tandem_stream_synchronize(stream, 10000) == NULL);
  CHECK(count == 3);
  tandem_graph_free(graph);
  tandem_stream_free(stream);
  return 0;
}
