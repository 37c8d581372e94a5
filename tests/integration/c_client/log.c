/* tandem-test-log RUNTIME_DIR HOW: a client whose log is looked at, for test_log_hook.py. HOW is "none", or a
 * number of enum tandem_log_level for a callback that writes each line to standard output. It connects, joins
 * a group alone and prepares a plan, if it can, and then takes the callback back. Standard error has what it should not have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tandem/tandem.h"

static int within, set_within = TANDEM_OK;

static void WriteLine(void* user, int level, const char* text) {
  if (!within++) {
    tandem_status* status = tandem_set_log_callback(NULL, NULL, TANDEM_LOG_INFO);
    set_within = tandem_status_code(status);
    tandem_status_free(status);
  }
  fprintf(user, "%d %s\n", level, text);
}

int main(int argc, char** argv) {
  tandem_client* client = NULL;
  tandem_group* group = NULL;
  tandem_join_options join;
  tandem_status* status;
  if (argc != 3) return 2;
  if (strcmp(argv[2], "none") != 0 && tandem_set_log_callback(WriteLine, stdout, atoi(argv[2])) != NULL)
    return 3;
  status = tandem_connect(argv[1], "log", 10000, &client);
  if (status == NULL) {
    tandem_join_options_init(&join, sizeof join);
    join.job_key = "the job of one log";
    join.job_key_bytes = strlen(join.job_key);
    join.name = "alone";
    status = tandem_join_group(client, &join, &group);
  }
  if (status == NULL) {
    float value = 1;
    tandem_collective collective;
    tandem_collective_init(&collective, sizeof collective);
    collective.input = collective.output = &value;
    collective.count = 1;
    status = tandem_collective_prepare(group, &collective, 10000);
  }
  printf("status %d %s\n", tandem_status_code(status), tandem_status_message(status));
  if (within && set_within != TANDEM_FAILED_PRECONDITION) return 4;
  if (tandem_set_log_callback(NULL, NULL, TANDEM_LOG_DEBUG) != NULL) return 5;
  puts("taken back");
  tandem_status_free(status);
  tandem_group_free(group);
  tandem_client_free(client);
  return 0;
}
