/* tandem-test-c-client RUNTIME_DIR RANK: one of two ranks, which go through the C interface from
 * tandem_connect to the end of their group against a daemon of the host backend. The first expectation that
 * fails is printed, and ends the process with 1. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tandem/tandem.h"

enum { kCount = 256, kBytes = 4 * kCount, kWaitBudget = 30000 };

#define CHECK(condition)                                                                \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      fprintf(stderr, "rank %d, %s:%d: %s\n", my_rank, __FILE__, __LINE__, #condition); \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)
#define OK(call) ExpectOk((call), __LINE__, #call)
#define FAILS(code, reason, call) ExpectFailure((call), (code), (reason), __LINE__, #call)

static int my_rank;

static void ExpectOk(tandem_status* status, int line, const char* call) {
  if (status == NULL) return;
  fprintf(stderr, "rank %d, line %d: %s: %d %s\n", my_rank, line, call, tandem_status_code(status),
          tandem_status_message(status));
  exit(1);
}

/* `reason` NULL: any. */
static void ExpectFailure(tandem_status* status, int code, const char* reason, int line, const char* call) {
  if (tandem_status_code(status) != code ||
      (reason != NULL && strcmp(tandem_status_reason(status), reason) != 0)) {
    fprintf(stderr, "rank %d, line %d: %s: %d %s (%s), not %d %s\n", my_rank, line, call,
            tandem_status_code(status), tandem_status_message(status), tandem_status_reason(status), code,
            reason == NULL ? "" : reason);
    exit(1);
  }
  tandem_status_free(status);
}

static tandem_client* client;
static tandem_group* group;
static tandem_stream* stream;
static tandem_memory *tensor, *in, *out;
static tandem_plan* plan;

static void BarrierOn(int channel) { OK(tandem_tensor_barrier(tensor, channel, kWaitBudget)); }

static void Connect(const char* runtime_dir) {
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_connect(runtime_dir, "c", kWaitBudget, NULL));
  OK(tandem_connect(runtime_dir, "c", kWaitBudget, &client));
  CHECK(tandem_client_session_id(client) != 0);
  CHECK(strcmp(tandem_client_backend(client), "host") == 0);
  CHECK(tandem_client_daemon_version(client)[0] != '\0');
  CHECK(tandem_client_gpu_count(client) == 2);
  CHECK(tandem_client_gpu_uuid(client, 1) != NULL && tandem_client_gpu_uuid(client, 2) == NULL);
  CHECK(tandem_client_gpu_uuid(client, -1) == NULL);
  OK(tandem_client_check(client));
  OK(tandem_stream_create(&stream));
}

static void Join(void) {
  const char* names[] = {""};
  const char* values[] = {"1"};
  tandem_join_options options;
  tandem_status* status;
  tandem_join_options_init(&options, sizeof(options));
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_join_group(client, NULL, &group));
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_join_group(client, &options, NULL));
  options.job_key = "a job of two C programs";
  options.job_key_bytes = strlen(options.job_key);
  options.name = "c";
  options.world_size = 10;
  options.rank = 9;
  options.deadline_ms = kWaitBudget;
  status = tandem_join_group(client, &options, &group);
  CHECK(tandem_status_code(status) == TANDEM_INVALID_ARGUMENT &&
        strcmp(tandem_status_field(status), "gpu_uuid") == 0);
  tandem_status_free(status);
  options.world_size = 2;
  options.rank = my_rank;
  options.option_count = 1;
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_join_group(client, &options, &group)); /* without the arrays */
  options.option_names = names;
  options.option_values = values;
  FAILS(TANDEM_INVALID_ARGUMENT, NULL,
        tandem_join_group(client, &options, &group)); /* an option without a name */
  names[0] = "nccl.min_ctas";
  options.on_slow_placement = TANDEM_ON_SLOW_PLACEMENT_ERROR + 1;
  status = tandem_join_group(client, &options, &group);
  CHECK(tandem_status_code(status) == TANDEM_INVALID_ARGUMENT &&
        strcmp(tandem_status_field(status), "on_slow_placement") == 0);
  tandem_status_free(status);
  options.on_slow_placement = TANDEM_ON_SLOW_PLACEMENT_WARN;
  OK(tandem_join_group(client, &options, &group));
  CHECK(tandem_group_id(group) != 0 && tandem_group_rank(group) == my_rank &&
        tandem_group_world_size(group) == 2);
  CHECK(tandem_group_incarnation(group) == 1);
  CHECK(strcmp(tandem_group_gpu_uuid(group), tandem_client_gpu_uuid(client, my_rank)) == 0);
  CHECK(tandem_group_topology_class(group)[0] != '\0');
  CHECK(tandem_group_links(group, 0, 1) > 0);
  CHECK(tandem_group_links(group, 0, 2) == 0 && tandem_group_links(group, -1, 0) == 0);
}

static void Tensors(void) {
  const int64_t shape[] = {kCount}, longer[] = {kCount + 1};
  const int peer = 1 - my_rank;
  uint32_t* words;
  size_t count;
  void* buffer;
  uint64_t id;
  tandem_memory* met;
  tandem_status* status;
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_allocate(group, shape, 1, 99, NULL, kWaitBudget, &tensor));
  OK(tandem_allocate(group, shape, 1, TANDEM_DTYPE_F32, NULL, kWaitBudget, &tensor));
  CHECK(tandem_memory_bytes(tensor) == kBytes && tandem_memory_registration_id(tensor) != 0);
  CHECK(tandem_tensor_channels(tensor) > 3);
  OK(tandem_tensor_get_buffer(tensor, my_rank, shape, 1, TANDEM_DTYPE_F32, 0, &buffer));
  CHECK(buffer == tandem_memory_data(tensor));
  OK(tandem_tensor_get_buffer(tensor, peer, NULL, 0, TANDEM_DTYPE_F32, kBytes - 4, &buffer));
  FAILS(TANDEM_OUT_OF_RANGE, NULL,
        tandem_tensor_get_buffer(tensor, peer, longer, 1, TANDEM_DTYPE_F32, 0, &buffer));
  FAILS(TANDEM_OUT_OF_RANGE, NULL,
        tandem_tensor_get_buffer(tensor, 2, shape, 1, TANDEM_DTYPE_F32, 0, &buffer));
  OK(tandem_tensor_signal_pad(tensor, peer, &words, &count));
  CHECK(count == 2 * (size_t)tandem_tensor_channels(tensor));
  FAILS(TANDEM_OUT_OF_RANGE, NULL, tandem_tensor_signal_pad(tensor, -1, &words, &count));
  BarrierOn(0);
  OK(tandem_tensor_put_signal(tensor, peer, 1, kWaitBudget));
  OK(tandem_tensor_wait_signal(tensor, peer, 1, kWaitBudget));
  status = tandem_tensor_wait_signal(tensor, peer, 2, 20);
  CHECK(tandem_status_code(status) == TANDEM_DEADLINE_EXCEEDED &&
        strcmp(tandem_status_reason(status), "RANK_LATE") == 0 &&
        strcmp(tandem_status_who(status), my_rank == 0 ? "rank 1" : "rank 0") == 0);
  tandem_status_free(status);
  /* The peer's words, by a stream. */
  OK(tandem_tensor_memset32(tensor, stream, peer, 8, 40 + (uint32_t)my_rank, 2));
  FAILS(TANDEM_OUT_OF_RANGE, NULL, tandem_tensor_memset32(tensor, stream, peer, kBytes - 4, 1, 2));
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_tensor_memset32(tensor, stream, peer, 2, 1, 1));
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_tensor_memset32_cuda(tensor, NULL, peer, 0, 1, 1));
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_tensor_write32_cuda(tensor, NULL, peer, 0, 1));
  OK(tandem_stream_synchronize(stream, kWaitBudget));
  BarrierOn(0);
  words = tandem_memory_data(tensor);
  CHECK(words[1] == 0 && words[2] == 40 + (uint32_t)peer && words[3] == 40 + (uint32_t)peer && words[4] == 0);
  /* A tensor that was there before its group's meeting. */
  OK(tandem_empty(client, shape, 1, TANDEM_DTYPE_F32, tandem_client_gpu_uuid(client, my_rank), NULL, &id));
  OK(tandem_rendezvous(client, id, group, kWaitBudget, &met));
  CHECK(tandem_memory_bytes(met) == kBytes && tandem_memory_data(met) != tandem_memory_data(tensor));
  tandem_memory_free(met);
  OK(tandem_free_tensor(client, id));
  FAILS(TANDEM_NOT_FOUND, NULL, tandem_free_tensor(client, id));
}

static void Registrations(void) {
  const char* gpu = tandem_group_gpu_uuid(group);
  tandem_memory* own;
  void* buffer;
  float value = 0;
  const int fd = memfd_create("c", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && ftruncate(fd, kBytes) == 0);
  FAILS(TANDEM_INVALID_ARGUMENT, NULL,
        tandem_register_fd(client, fd, kBytes, gpu, &own)); /* it might shrink */
  CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_register_fd(client, fd, 2 * kBytes, gpu, &own));
  OK(tandem_register_fd(client, fd, kBytes, gpu, &own));
  CHECK(tandem_memory_bytes(own) == kBytes);
  *(float*)tandem_memory_data(own) = 7;
  CHECK(pread(fd, &value, sizeof(value), 0) == sizeof(value) && value == 7);
  CHECK(tandem_tensor_channels(own) == 0);
  FAILS(TANDEM_FAILED_PRECONDITION, NULL,
        tandem_tensor_get_buffer(own, 0, NULL, 0, TANDEM_DTYPE_F32, 0, &buffer));
  FAILS(TANDEM_FAILED_PRECONDITION, NULL, tandem_tensor_barrier(own, 0, 1));
  close(fd);
  tandem_memory_free(own);
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_register_cuda(client, &value, sizeof(value), &own));
  OK(tandem_allocate_registered(client, kBytes, gpu, &in));
  OK(tandem_allocate_registered(client, kBytes, gpu, &out));
}

static void Fill(float value) {
  for (int i = 0; i < kCount; ++i) {
    ((float*)tandem_memory_data(in))[i] = value + (float)(i % 7) * (float)(my_rank + 1);
    ((float*)tandem_memory_data(out))[i] = -1;
  }
}

static int Sums(float values) {
  for (int i = 0; i < kCount; ++i) {
    if (((float*)tandem_memory_data(out))[i] != values + (float)(i % 7) * 3) return 0;
  }
  return 1;
}

static void Prepare(void) {
  int64_t shape[] = {kCount};
  tandem_operand operands[2];
  tandem_request request;
  tandem_preview* preview;
  tandem_status* status;
  for (int i = 0; i < 2; ++i) {
    tandem_operand_init(&operands[i], sizeof(operands[i]));
    operands[i].role = i == 0 ? TANDEM_ROLE_INPUT : TANDEM_ROLE_OUTPUT;
    operands[i].dtype = TANDEM_DTYPE_F32;
    operands[i].shape = shape;
    operands[i].dims = 1;
  }
  tandem_request_init(&request, sizeof(request));
  request.op = TANDEM_OP_ALL_REDUCE;
  request.operands = operands;
  request.operand_count = 2;
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_prepare(group, "ar", NULL, kWaitBudget, &plan));
  shape[0] = kCount + my_rank;
  status = tandem_prepare(group, "differ", &request, kWaitBudget, &plan);
  CHECK(tandem_status_code(status) == TANDEM_INVALID_ARGUMENT &&
        strcmp(tandem_status_reason(status), "FIELD_MISMATCH") == 0);
  CHECK(strstr(tandem_status_field(status), "shape") != NULL);
  tandem_status_free(status);
  shape[0] = kCount;
  OK(tandem_preview_plan(group, &request, &preview));
  OK(tandem_prepare(group, "ar", &request, kWaitBudget, &plan));
  CHECK(tandem_preview_algorithm(preview) == tandem_plan_algorithm(plan));
  CHECK(strcmp(tandem_preview_reason(preview), tandem_plan_reason(plan)) == 0);
  CHECK(tandem_preview_fused(preview) == 1 && tandem_preview_placement(preview) == TANDEM_PLACEMENT_ENGINE);
  CHECK(tandem_preview_predicted_us(preview) > 0);
  CHECK(strstr(tandem_preview_json(preview), "\"plan_id\":0") != NULL);
  CHECK(strstr(tandem_preview_explanation(preview), tandem_plan_reason(plan)) != NULL);
  tandem_preview_free(preview);
  request.op = TANDEM_OP_SEND_RECEIVE;
  FAILS(TANDEM_INVALID_ARGUMENT, "BAD_FIELD", tandem_preview_plan(group, &request, &preview));
  CHECK(preview == NULL);
  CHECK(tandem_plan_id(plan) != 0 && tandem_plan_algorithm(plan) != 0);
  CHECK(tandem_plan_slots(plan) == 2 && tandem_plan_slot_bytes(plan, 1) == kBytes &&
        tandem_plan_slot_bytes(plan, 2) == 0);
  CHECK(tandem_plan_reason(plan)[0] != '\0' && tandem_plan_summary(plan)[0] != '\0');
  CHECK(strstr(tandem_plan_json(plan), "\"key\":\"ar\"") != NULL);
  CHECK(strstr(tandem_plan_explanation(plan), tandem_plan_reason(plan)) != NULL);
  CHECK(strstr(tandem_plan_explanation(plan), "\n  not ") != NULL); /* an algorithm that was not chosen */
  CHECK(tandem_plan_explanation(plan) == tandem_plan_explanation(plan));
}

static void Launch(void) {
  const tandem_binding bindings[] = {{in, 0, NULL}, {out, 0, NULL}};
  tandem_graph* graph;
  uint64_t launch;
  int ended = 0;
  Fill(1);
  OK(tandem_launch(plan, stream, bindings, 2, kWaitBudget, "a tag"));
  OK(tandem_stream_synchronize(stream, kWaitBudget));
  OK(tandem_plan_wait(plan, kWaitBudget));
  OK(tandem_plan_query(plan, &ended));
  CHECK(ended == 1 && Sums(2));
  /* Wrong bindings are told by the call, and fail the launch on both ranks. */
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_launch(plan, stream, bindings, 1, 0, NULL));
  OK(tandem_stream_synchronize(stream, kWaitBudget));
  OK(tandem_plan_wait(plan, kWaitBudget));
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_launch(plan, NULL, bindings, 2, 0, NULL));
  FAILS(TANDEM_INVALID_ARGUMENT, NULL, tandem_launch_cuda(plan, NULL, bindings, 2, 0, NULL));
  /* Without a stream. */
  Fill(2);
  OK(tandem_launch_without_stream(plan, bindings, 2, 0, NULL, &launch));
  OK(tandem_wait_launch(plan, launch, kWaitBudget));
  CHECK(Sums(4));
  FAILS(TANDEM_NOT_FOUND, NULL, tandem_wait_launch(plan, launch, kWaitBudget));
  /* One that the peer does not make in time, which is then told of it. */
  if (my_rank == 0) {
    OK(tandem_launch_without_stream(plan, bindings, 2, 200, NULL, &launch));
    OK(tandem_plan_query(plan, &ended));
    CHECK(ended == 0);
    FAILS(TANDEM_DEADLINE_EXCEEDED, "RANK_LATE", tandem_plan_wait(plan, kWaitBudget));
  }
  BarrierOn(3);
  if (my_rank == 1) {
    OK(tandem_launch_without_stream(plan, bindings, 2, 0, NULL, &launch));
    FAILS(TANDEM_DEADLINE_EXCEEDED, "RANK_LATE", tandem_wait_launch(plan, launch, kWaitBudget));
  }
  BarrierOn(3);
  OK(tandem_group_renew(group, kWaitBudget));
  /* In a graph. */
  OK(tandem_stream_begin_capture(stream));
  FAILS(TANDEM_FAILED_PRECONDITION, NULL, tandem_stream_begin_capture(stream));
  OK(tandem_launch(plan, stream, bindings, 2, 0, NULL));
  OK(tandem_stream_end_capture(stream, &graph));
  for (int replay = 0; replay < 3; ++replay) {
    Fill((float)replay);
    OK(tandem_graph_launch(graph, stream));
    OK(tandem_stream_synchronize(stream, kWaitBudget));
    CHECK(Sums(2 * (float)replay));
    BarrierOn(3);
  }
  OK(tandem_plan_wait(plan, kWaitBudget));
  tandem_graph_free(graph);
  OK(tandem_plan_release(plan));
  FAILS(TANDEM_FAILED_PRECONDITION, "PLAN_RELEASED", tandem_plan_release(plan));
  FAILS(TANDEM_FAILED_PRECONDITION, "PLAN_RELEASED", tandem_launch(plan, stream, bindings, 2, 0, NULL));
  FAILS(TANDEM_FAILED_PRECONDITION, "PLAN_RELEASED",
        tandem_launch_without_stream(plan, bindings, 2, 0, NULL, &launch));
}

static atomic_int left = -1;

static void OnEvent(void* user, int kind, uint64_t group_id, int rank, const tandem_status* status) {
  (void)status;
  if (kind == TANDEM_EVENT_RANK_LEFT && group_id == *(const uint64_t*)user) left = rank;
}

static void Leave(void) {
  static uint64_t id;
  id = tandem_group_id(group);
  tandem_client_on_event(client, OnEvent, &id);
  BarrierOn(0);
  if (my_rank == 1) {
    OK(tandem_group_leave(group, kWaitBudget));
  } else {
    const time_t end = time(NULL) + kWaitBudget / 1000;
    while (left != 1 && time(NULL) < end) sched_yield();
    CHECK(left == 1);
    tandem_client_on_event(client, NULL, NULL);
    OK(tandem_group_leave(group, kWaitBudget));
  }
  OK(tandem_client_detach(client));
  FAILS(TANDEM_UNAVAILABLE, NULL, tandem_client_check(client));
  FAILS(TANDEM_UNAVAILABLE, NULL, tandem_group_leave(group, kWaitBudget));
  /* In any order. */
  tandem_client_free(client);
  tandem_group_free(group);
  tandem_memory_free(in);
  tandem_plan_free(plan);
  tandem_memory_free(tensor);
  tandem_memory_free(out);
  tandem_stream_free(stream);
}

static void Suspend(void) {
  float* const values = tandem_memory_data(tensor);
  for (int keep = 1; keep >= 0; --keep) {
    values[0] = 7;
    OK(tandem_client_suspend(client, keep, kWaitBudget));
    OK(tandem_client_suspend(client, keep, 0));
    FAILS(TANDEM_FAILED_PRECONDITION, "SUSPENDED", tandem_group_renew(group, kWaitBudget));
    OK(tandem_client_resume(client, kWaitBudget));
    OK(tandem_client_resume(client, 0));
    CHECK(tandem_memory_data(tensor) == values && values[0] == (keep != 0 ? 7 : 0));
    OK(tandem_group_suspend(group, keep, kWaitBudget));
    OK(tandem_group_resume(group, kWaitBudget));
    BarrierOn(3);
  }
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  my_rank = atoi(argv[2]);
  Connect(argv[1]);
  Join();
  Tensors();
  Registrations();
  Prepare();
  Launch();
  Suspend();
  Leave();
  return 0;
}
