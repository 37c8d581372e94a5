/* Sums a vector over all ranks, in C. Run it once a rank, against a daemon of the host backend:
 *   TANDEM_JOB_KEY=$(openssl rand -hex 16) all_reduce_c RANK WORLD_SIZE */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tandem/tandem.h"

enum { kCount = 1 << 20 };

/* Prints a failure and ends the process. The daemon frees what a process leaves behind. */
static void Check(tandem_status* status, const char* call) {
  if (status == NULL) return;
  fprintf(stderr, "%s: %s (%s)\n", call, tandem_status_message(status), tandem_status_reason(status));
  exit(1);
}

int main(int argc, char** argv) {
  const char* job_key = getenv("TANDEM_JOB_KEY");
  if (argc != 3 || job_key == NULL) return 2;
  tandem_client* client;
  Check(tandem_connect(NULL, NULL, TANDEM_DEFAULT_DEADLINE, &client), "connect");
  tandem_join_options join;
  tandem_join_options_init(&join, sizeof join);
  join.job_key = job_key;
  join.job_key_bytes = strlen(job_key);
  join.name = "example";
  join.rank = atoi(argv[1]);
  join.world_size = atoi(argv[2]);
  tandem_group* group;
  Check(tandem_join_group(client, &join, &group), "join");

  const int64_t shape[] = {kCount};
  tandem_memory *input, *output;
  Check(tandem_allocate_registered(client, kCount * sizeof(float), tandem_group_gpu_uuid(group), &input),
        "input");
  Check(tandem_allocate(group, shape, 1, TANDEM_DTYPE_F32, NULL, TANDEM_DEFAULT_DEADLINE, &output), "output");

  tandem_operand operands[2];
  for (int slot = 0; slot < 2; ++slot) {
    tandem_operand_init(&operands[slot], sizeof operands[slot]);
    operands[slot].role = slot == 0 ? TANDEM_ROLE_INPUT : TANDEM_ROLE_OUTPUT;
    operands[slot].dtype = TANDEM_DTYPE_F32;
    operands[slot].shape = shape;
    operands[slot].dims = 1;
  }
  operands[1].symmetric = 1;
  tandem_request request;
  tandem_request_init(&request, sizeof request);
  request.op = TANDEM_OP_ALL_REDUCE;
  request.operands = operands;
  request.operand_count = 2;
  tandem_plan* plan;
  Check(tandem_prepare(group, "sum", &request, TANDEM_DEFAULT_DEADLINE, &plan), "prepare");
  printf("%s: %s\n", tandem_plan_summary(plan), tandem_plan_reason(plan));

  float* values = tandem_memory_data(input);
  for (int i = 0; i < kCount; ++i) values[i] = (float)(join.rank + 1);
  tandem_stream* stream;
  Check(tandem_stream_create(&stream), "stream");
  const tandem_binding bindings[] = {{.memory = input}, {.memory = output}};
  Check(tandem_launch(plan, stream, bindings, 2, TANDEM_DEFAULT_DEADLINE, NULL), "launch");
  Check(tandem_stream_synchronize(stream, TANDEM_DEFAULT_DEADLINE), "synchronize");
  Check(tandem_plan_wait(plan, TANDEM_DEFAULT_DEADLINE), "wait");

  const float* sums = tandem_memory_data(output);
  const float expected = (float)(join.world_size * (join.world_size + 1) / 2);
  for (int i = 0; i < kCount; ++i) {
    if (sums[i] != expected) return 1;
  }
  printf("rank %d: every sum is %.0f\n", join.rank, (double)expected);
  Check(tandem_group_leave(group, TANDEM_DEFAULT_DEADLINE), "leave");
  Check(tandem_client_detach(client), "detach");
  tandem_plan_free(plan);
  tandem_stream_free(stream);
  tandem_memory_free(output);
  tandem_memory_free(input);
  tandem_group_free(group);
  tandem_client_free(client);
}
