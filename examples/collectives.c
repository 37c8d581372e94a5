/* Collectives of any count in one call each, in C. Run it once a rank, against a daemon of the host backend:
 *   TANDEM_JOB_KEY=$(openssl rand -hex 16) collectives RANK WORLD_SIZE */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tandem/tandem.h"

enum { kCount = 100000, kMaxRanks = 8 };

/* Prints a failure and ends the process. The daemon frees what a process leaves behind. */
static void Check(tandem_status* status, const char* call) {
  if (status == NULL) return;
  fprintf(stderr, "%s: %s (%s)\n", call, tandem_status_message(status), tandem_status_reason(status));
  exit(1);
}

static float values[kCount], parts[kMaxRanks];

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
  tandem_stream* stream;
  Check(tandem_stream_create(&stream), "stream");

  /* The first call of a kind prepares a plan with all ranks. Later ones, of any count, need nobody for it. */
  for (int i = 0; i < kCount; ++i) values[i] = (float)(join.rank + 1);
  for (size_t count = 10; count <= kCount; count *= 10) {
    Check(tandem_all_reduce(group, values, values, count, TANDEM_DTYPE_F32, TANDEM_REDUCE_MAX, stream),
          "max");
  }
  Check(tandem_all_gather(group, &values[kCount - 1], parts, 1, TANDEM_DTYPE_F32, stream), "gather");
  Check(tandem_stream_synchronize(stream, TANDEM_DEFAULT_DEADLINE), "synchronize");
  Check(tandem_collectives_wait(group, TANDEM_DEFAULT_DEADLINE), "wait");

  for (int rank = 0; rank < join.world_size; ++rank) {
    if (parts[rank] != (float)join.world_size) return 1;
  }
  printf("rank %d: every rank has the maximum %.0f\n", join.rank, (double)parts[0]);
  Check(tandem_group_leave(group, TANDEM_DEFAULT_DEADLINE), "leave");
  Check(tandem_client_detach(client), "detach");
  tandem_stream_free(stream);
  tandem_group_free(group);
  tandem_client_free(client);
}
