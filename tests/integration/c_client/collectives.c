/* tandem-test-collectives RUNTIME_DIR RANK WORLD: one rank of the group, which makes collectives of many counts in
 * one call each, for test_collectives.py. It prints "prepared" and waits for a line, makes further calls, prints
 * "done" and waits for another one. The first expectation that fails is printed, and ends the process with 1. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tandem/tandem.h"

enum { kWaitBudget = 60000, kMost = 140000, kUntouched = -7 };

static int rank, world;
static tandem_client* client;
static tandem_group* group;
static tandem_stream* stream;
static int32_t *in, *out; /* of world * kMost elements */

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "rank %d, %s:%d: %s\n", rank, __FILE__, __LINE__, #condition); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)
#define OK(call) ExpectOk((call), __LINE__, #call)
#define FAILS(code, reason, field, call) ExpectFailure((call), (code), (reason), (field), __LINE__)

static void ExpectOk(tandem_status* status, int line, const char* call) {
  if (status == NULL) return;
  fprintf(stderr, "rank %d, line %d: %s: %d %s (%s)\n", rank, line, call, tandem_status_code(status),
          tandem_status_message(status), tandem_status_reason(status));
  exit(1);
}

static void ExpectFailure(tandem_status* status, int code, const char* reason, const char* field, int line) {
  if (tandem_status_code(status) != code || strcmp(tandem_status_reason(status), reason) != 0 ||
      strcmp(tandem_status_field(status), field) != 0) {
    fprintf(stderr, "rank %d, line %d: %d %s (%s, %s), not %d %s %s\n", rank, line,
            tandem_status_code(status), tandem_status_message(status), tandem_status_reason(status),
            tandem_status_field(status), code, reason, field);
    exit(1);
  }
  tandem_status_free(status);
}

/* Element i of a rank's input. */
static int32_t Value(int of, size_t i) { return (int32_t)((i % 1000) * 8) + of + 1; }
static int32_t Sum(size_t i) { return world * (int32_t)((i % 1000) * 8) + world * (world + 1) / 2; }

static void Fill(int32_t* data, size_t count) {
  for (size_t i = 0; i < count; ++i) data[i] = Value(rank, i);
}
static void Wipe(int32_t* data, size_t count) {
  for (size_t i = 0; i < count; ++i) data[i] = kUntouched;
}
static void End(void) {
  OK(tandem_stream_synchronize(stream, kWaitBudget));
  OK(tandem_collectives_wait(group, kWaitBudget));
}

static void AllReduce(size_t count) {
  Fill(in, count);
  Wipe(out, count + 1);
  OK(tandem_all_reduce(group, in, out, count, TANDEM_DTYPE_I32, TANDEM_REDUCE_SUM, stream));
  End();
  for (size_t i = 0; i < count; ++i) CHECK(out[i] == Sum(i) && in[i] == Value(rank, i));
  CHECK(out[count] == kUntouched);
  OK(tandem_all_reduce(group, in, in, count, TANDEM_DTYPE_I32, TANDEM_REDUCE_MAX, stream));
  End();
  for (size_t i = 0; i < count; ++i) CHECK(in[i] == Value(world - 1, i));
}

/* `in_place`: the smaller operand is this rank's part of the larger one. */
static void AllGather(size_t count, int in_place) {
  const size_t all = count * (size_t)world;
  int32_t* part = in_place ? out + (size_t)rank * count : in;
  Wipe(out, all + 1);
  Fill(part, count);
  OK(tandem_all_gather(group, part, out, count, TANDEM_DTYPE_F32, stream));
  End();
  for (size_t i = 0; i < all; ++i) CHECK(out[i] == Value((int)(i / count), i % count));
  CHECK(out[all] == kUntouched);
}

static void ReduceScatter(size_t count, int in_place) {
  const size_t all = count * (size_t)world;
  int32_t* part = in_place ? in + (size_t)rank * count : out;
  Wipe(out, count + 1);
  Fill(in, all);
  OK(tandem_reduce_scatter(group, in, part, count, TANDEM_DTYPE_I32, TANDEM_REDUCE_SUM, stream));
  End();
  for (size_t i = 0; i < count; ++i) CHECK(part[i] == Sum((size_t)rank * count + i));
  if (!in_place) CHECK(out[count] == kUntouched);
}

static void AllToAll(size_t count) {
  const size_t all = count * (size_t)world;
  Wipe(out, all + 1);
  Fill(in, all);
  OK(tandem_all_to_all(group, in, out, count, TANDEM_DTYPE_F32, stream));
  End();
  for (size_t i = 0; i < all; ++i) CHECK(out[i] == Value((int)(i / count), (size_t)rank * count + i % count));
  CHECK(out[all] == kUntouched);
}

static void Broadcast(size_t count, int root, int in_place) {
  const int is_root = rank == root;
  Wipe(out, count + 1);
  Fill(in_place && is_root ? out : in, count);
  OK(tandem_broadcast(group,
                      !is_root   ? NULL
                      : in_place ? out
                                 : in,
                      out, count, TANDEM_DTYPE_F32, root, stream));
  End();
  for (size_t i = 0; i < count; ++i) CHECK(out[i] == Value(root, i));
  CHECK(out[count] == kUntouched);
}

static void Reduce(size_t count, int root, int in_place) {
  const int is_root = rank == root;
  int32_t* to = in_place ? in : out;
  Wipe(out, count + 1);
  Fill(in, count);
  OK(tandem_reduce(group, in, is_root ? to : NULL, count, TANDEM_DTYPE_I32, TANDEM_REDUCE_SUM, root, stream));
  End();
  for (size_t i = 0; i < count; ++i) {
    CHECK(to[i] == (is_root ? Sum(i) : in_place ? Value(rank, i) : kUntouched));
    if (!(is_root && in_place)) CHECK(in[i] == Value(rank, i));
  }
}

static void AllOf(size_t count) {
  AllReduce(count);
  Broadcast(count, world - 1, count % 2 == 0);
  Reduce(count, 0, count % 2 == 0);
  if (count * (size_t)world > (1 << 16)) count = count / (size_t)world; /* of the first family still */
  for (int in_place = 0; in_place < 2; ++in_place) {
    AllGather(count, in_place);
    ReduceScatter(count, in_place);
  }
  AllToAll(count);
}

static void NothingAtAll(void) {
  int ended = 0;
  OK(tandem_all_reduce(group, NULL, NULL, 0, TANDEM_DTYPE_I32, TANDEM_REDUCE_SUM, stream));
  OK(tandem_all_gather(group, NULL, NULL, 0, TANDEM_DTYPE_I32, stream));
  OK(tandem_collectives_wait(group, kWaitBudget));
  OK(tandem_collectives_query(group, &ended));
  CHECK(ended == 1);
}

static void WrongCalls(void) {
  int ended;
  const int bad = TANDEM_INVALID_ARGUMENT;
  FAILS(bad, "BAD_FIELD", "group", tandem_all_reduce(NULL, in, out, 1, TANDEM_DTYPE_I32, 0, stream));
  FAILS(bad, "BAD_FIELD", "stream", tandem_all_reduce(group, in, out, 1, TANDEM_DTYPE_I32, 0, NULL));
  FAILS(bad, "BAD_FIELD", "input", tandem_all_reduce(group, NULL, out, 1, TANDEM_DTYPE_I32, 0, stream));
  FAILS(bad, "BAD_FIELD", "output", tandem_all_gather(group, in, NULL, 1, TANDEM_DTYPE_I32, stream));
  FAILS(bad, "BAD_FIELD", "dtype", tandem_all_reduce(group, in, out, 1, 99, 0, stream));
  FAILS(bad, "BAD_FIELD", "root", tandem_broadcast(group, in, out, 1, TANDEM_DTYPE_I32, world, stream));
  FAILS(bad, "BAD_FIELD", "output", tandem_all_to_all(group, in, in, 1, TANDEM_DTYPE_I32, stream));
  FAILS(bad, "BAD_FIELD", "ended", tandem_collectives_query(group, NULL));
  FAILS(bad, "BAD_FIELD", "group", tandem_collectives_query(NULL, &ended));
  FAILS(bad, "BAD_FIELD", "collective", tandem_collective_launch(group, NULL, stream));
  FAILS(TANDEM_OUT_OF_RANGE, "TOO_MANY_ELEMENTS", "count",
        tandem_all_reduce(group, in, out, (size_t)1 << 40, TANDEM_DTYPE_I32, 0, stream));
  /* All ranks are refused it, and hear of it again without a meeting: rank 0 makes one call more. */
  for (int call = 0; call < (rank == 0 ? 3 : 2); ++call) {
    tandem_status* status = tandem_all_reduce(group, in, out, 8, TANDEM_DTYPE_I32, TANDEM_REDUCE_AVG, stream);
    CHECK(tandem_status_code(status) == TANDEM_INVALID_ARGUMENT);
    tandem_status_free(status);
  }
  if (world == 1) return;
  /* Ranks that do different things. The next calls are right. */
  FAILS(bad, "FIELD_MISMATCH", "reduce_op",
        tandem_all_reduce(group, in, out, 8, TANDEM_DTYPE_I32,
                          rank == 0 ? TANDEM_REDUCE_MIN : TANDEM_REDUCE_PRODUCT, stream));
  Fill(in, 8);
  OK(tandem_all_reduce(group, in, out, 8, TANDEM_DTYPE_I32, TANDEM_REDUCE_MIN, stream));
  End();
  CHECK(out[7] == Value(0, 7));
  FAILS(bad, "FIELD_MISMATCH", "operands[1].alias_of",
        tandem_all_reduce(group, in, rank == 0 ? in : out, 8, TANDEM_DTYPE_U8, TANDEM_REDUCE_MAX, stream));
}

/* A capture launches what has been prepared before it, and prepares nothing. */
static void Captured(void) {
  tandem_graph* graph;
  tandem_collective collective;
  tandem_collective_init(&collective, sizeof collective);
  collective.dtype = TANDEM_DTYPE_F32;
  collective.input = in;
  collective.output = out;
  collective.count = 500;
  FAILS(TANDEM_FAILED_PRECONDITION, "NOT_PREPARED", "",
        tandem_collective_prepare(group, &collective, TANDEM_DO_NOT_WAIT));
  OK(tandem_stream_begin_capture(stream));
  FAILS(TANDEM_FAILED_PRECONDITION, "NOT_PREPARED", "", tandem_collective_launch(group, &collective, stream));
  OK(tandem_stream_end_capture(stream, &graph));
  tandem_graph_free(graph);
  OK(tandem_collective_prepare(group, &collective, kWaitBudget));
  OK(tandem_collective_prepare(group, &collective, TANDEM_DO_NOT_WAIT));
  OK(tandem_stream_begin_capture(stream));
  OK(tandem_collective_launch(group, &collective, stream));
  OK(tandem_stream_end_capture(stream, &graph));
  for (int replay = 1; replay < 4; ++replay) {
    for (int i = 0; i < 500; ++i) ((float*)in)[i] = (float)(i * replay);
    OK(tandem_graph_launch(graph, stream));
    End();
    for (int i = 0; i < 500; ++i) CHECK(((float*)out)[i] == (float)(i * replay * world));
  }
  tandem_graph_free(graph);
}

static void Say(const char* what) {
  char line[64];
  puts(what);
  fflush(stdout);
  CHECK(fgets(line, sizeof line, stdin) != NULL);
}

int main(int argc, char** argv) {
  tandem_join_options join;
  if (argc != 4) return 2;
  rank = atoi(argv[2]);
  world = atoi(argv[3]);
  in = malloc(((size_t)world * kMost + 1) * sizeof *in);
  out = malloc(((size_t)world * kMost + 1) * sizeof *out);
  CHECK(in != NULL && out != NULL);
  OK(tandem_connect(argv[1], "collectives", kWaitBudget, &client));
  OK(tandem_stream_create(&stream));
  tandem_join_options_init(&join, sizeof join);
  join.job_key = "a job of collectives";
  join.job_key_bytes = strlen(join.job_key);
  join.name = "c";
  join.world_size = world;
  join.rank = rank;
  OK(tandem_join_group(client, &join, &group));
  NothingAtAll();
  AllOf(3);
  AllOf(1000);
  AllReduce(70000); /* beyond the first bound */
  WrongCalls();
  Captured();
  Say("prepared");
  AllOf(1);
  AllOf(2);
  AllOf(999);
  AllOf(65536);
  AllReduce(131072);
  AllReduce(70000);
  AllReduce(12345);
  Say("done");
  OK(tandem_group_leave(group, kWaitBudget));
  OK(tandem_client_detach(client));
  tandem_group_free(group);
  tandem_stream_free(stream);
  tandem_client_free(client);
  free(in);
  free(out);
  return 0;
}
