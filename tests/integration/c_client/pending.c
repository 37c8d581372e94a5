/* tandem-test-pending RUNTIME_DIR RANK: one of two ranks, which join and prepare in the background and wait for
 * descriptors alone, for test_pending.py. Rank 1 waits for a line before each of its calls, and rank 0 prints one
 * once it has looked at its own. The first expectation that fails is printed, and ends the process with 1. */
#define _GNU_SOURCE
#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "tandem/tandem.h"

enum { kWaitBudget = 60000, kCount = 100, kDropped = 10 };

static int rank;
static tandem_client* client;
static tandem_group* group;
static tandem_stream* stream;

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "rank %d, %s:%d: %s\n", rank, __FILE__, __LINE__, #condition); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)
#define OK(call) Expect((call), TANDEM_OK, __LINE__)
#define FAILS(code, call) Expect((call), (code), __LINE__)

static void Expect(tandem_status* status, int code, int line) {
  if (tandem_status_code(status) != code) {
    fprintf(stderr, "rank %d, line %d: %d %s, not %d\n", rank, line, tandem_status_code(status),
            tandem_status_message(status), code);
    exit(1);
  }
  tandem_status_free(status);
}

static int IsReadable(int fd, int wait_ms) {
  struct pollfd waiting = {fd, POLLIN, 0};
  return poll(&waiting, 1, wait_ms) == 1;
}

/* Rank 1 comes only once rank 0 has seen that nothing ends without it. */
static void AwaitTurn(void) {
  char line[64];
  if (rank == 1) CHECK(fgets(line, sizeof line, stdin) != NULL);
}
static void HasNotEnded(int fd) {
  if (rank == 1) return;
  CHECK(!IsReadable(fd, 0));
  puts("not ended");
  fflush(stdout);
}

static int Descriptors(void) {
  DIR* folder = opendir("/proc/self/fd");
  int count = 0;
  CHECK(folder != NULL);
  while (readdir(folder) != NULL) ++count;
  closedir(folder);
  return count;
}

static tandem_pending* StartJoin(const char* name) {
  tandem_pending* pending;
  tandem_join_options join;
  tandem_join_options_init(&join, sizeof join);
  join.job_key = "a job of background calls";
  join.job_key_bytes = strlen(join.job_key);
  join.name = name;
  join.world_size = 2;
  join.rank = rank;
  OK(tandem_join_group_start(client, &join, &pending));
  return pending;
}

static void Join(void) {
  tandem_group* none;
  tandem_plan* plan;
  tandem_pending* pending;
  if (rank == 0) {
    const int before = Descriptors();
    const time_t end = time(NULL) + kWaitBudget / 1000;
    pending = StartJoin("cancelled");
    FAILS(TANDEM_FAILED_PRECONDITION, tandem_pending_take_group(pending, &none));
    CHECK(none == NULL);
    tandem_pending_cancel(pending);
    CHECK(IsReadable(tandem_pending_fd(pending), kWaitBudget) && tandem_pending_ended(pending) == 1);
    FAILS(TANDEM_INVALID_ARGUMENT, tandem_pending_take_plan(pending, &plan));
    FAILS(TANDEM_CANCELLED, tandem_pending_take_group(pending, &none));
    FAILS(TANDEM_NOT_FOUND, tandem_pending_take_group(pending, &none));
    tandem_pending_free(pending);
    /* Dropped in flight, they end by themselves, with all that they hold. */
    for (int i = 0; i < kDropped; ++i) tandem_pending_free(StartJoin("dropped"));
    while (Descriptors() > before && time(NULL) < end) sched_yield();
    CHECK(Descriptors() == before);
  }
  AwaitTurn();
  pending = StartJoin("c");
  HasNotEnded(tandem_pending_fd(pending));
  CHECK(IsReadable(tandem_pending_fd(pending), kWaitBudget));
  OK(tandem_pending_take_group(pending, &group));
  CHECK(tandem_group_rank(group) == rank);
  tandem_pending_free(pending);
}

static tandem_pending* StartPrepare(const char* key) {
  const int64_t shape[] = {kCount};
  tandem_pending* pending;
  tandem_operand operands[2];
  tandem_request request;
  for (int i = 0; i < 2; ++i) {
    tandem_operand_init(&operands[i], sizeof operands[i]);
    operands[i].role = i == 0 ? TANDEM_ROLE_INPUT : TANDEM_ROLE_OUTPUT;
    operands[i].dtype = TANDEM_DTYPE_F32;
    operands[i].shape = shape;
    operands[i].dims = 1;
  }
  tandem_request_init(&request, sizeof request);
  request.op = TANDEM_OP_ALL_REDUCE;
  request.operands = operands;
  request.operand_count = 2;
  OK(tandem_prepare_start(group, key, &request, kWaitBudget, &pending));
  return pending;
}

static tandem_plan* Prepare(void) {
  tandem_plan* plan;
  tandem_pending* pending;
  if (rank == 0) tandem_pending_free(StartPrepare("dropped"));
  AwaitTurn();
  pending = StartPrepare("sum");
  HasNotEnded(tandem_pending_fd(pending));
  CHECK(IsReadable(tandem_pending_fd(pending), kWaitBudget));
  OK(tandem_pending_take_plan(pending, &plan));
  tandem_pending_free(pending);
  return plan;
}

/* The event loop hears of the launch's end, and the plan has the outcome then. */
static void Launch(tandem_plan* plan) {
  const int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  eventfd_t times = 0;
  int ended = 0;
  tandem_memory *in, *out;
  OK(tandem_allocate_registered(client, kCount * sizeof(float), tandem_group_gpu_uuid(group), &in));
  OK(tandem_allocate_registered(client, kCount * sizeof(float), tandem_group_gpu_uuid(group), &out));
  const tandem_binding bindings[] = {{in, 0, NULL}, {out, 0, NULL}};
  for (int i = 0; i < kCount; ++i) ((float*)tandem_memory_data(in))[i] = (float)(i + rank);
  FAILS(TANDEM_INVALID_ARGUMENT, tandem_group_notify(group, stream, -1));
  FAILS(TANDEM_INVALID_ARGUMENT, tandem_group_notify(group, NULL, event));
  AwaitTurn();
  OK(tandem_launch(plan, stream, bindings, 2, 0, NULL));
  OK(tandem_group_notify(group, stream, event));
  HasNotEnded(event);
  CHECK(IsReadable(event, kWaitBudget));
  CHECK(eventfd_read(event, &times) == 0 && times == 1);
  OK(tandem_plan_query(plan, &ended));
  CHECK(ended == 1);
  for (int i = 0; i < kCount; ++i) CHECK(((float*)tandem_memory_data(out))[i] == (float)(2 * i + 1));
  tandem_memory_free(in);
  tandem_memory_free(out);
  close(event);
}

int main(int argc, char** argv) {
  tandem_plan* plan;
  if (argc != 3) return 2;
  rank = atoi(argv[2]);
  OK(tandem_connect(argv[1], "pending", kWaitBudget, &client));
  OK(tandem_stream_create(&stream));
  Join();
  plan = Prepare();
  Launch(plan);
  tandem_plan_free(plan);
  OK(tandem_group_leave(group, kWaitBudget));
  OK(tandem_client_detach(client));
  tandem_group_free(group);
  tandem_stream_free(stream);
  tandem_client_free(client);
  return 0;
}
