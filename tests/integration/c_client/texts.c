/* tandem-test-texts RUNTIME_DIR: gives each call of the C interface that takes a text one that is not UTF-8.
 * Each must fail with BAD_FIELD and the field's name, and the same call with a good text must work. The first
 * expectation that fails is printed, and ends the process with 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tandem/tandem.h"

enum { kCount = 16, kWaitBudget = 30000 };

static const char* const kBad[] = {"caf\xe9", "\xc0\x80", "\xed\xa0\x80", "name \xf4\x90\x80\x80", "\xff"};
enum { kBads = sizeof(kBad) / sizeof(kBad[0]) };

static void Ok(tandem_status* status, const char* call) {
  if (status == NULL) return;
  fprintf(stderr, "%s: %d %s\n", call, tandem_status_code(status), tandem_status_message(status));
  exit(1);
}

static void Refused(tandem_status* status, const char* call, const char* field) {
  if (tandem_status_code(status) != TANDEM_INVALID_ARGUMENT ||
      strcmp(tandem_status_reason(status), "BAD_FIELD") != 0 ||
      strcmp(tandem_status_field(status), field) != 0) {
    fprintf(stderr, "%s: %d %s, reason %s, field %s, not %s\n", call, tandem_status_code(status),
            tandem_status_message(status), tandem_status_reason(status), tandem_status_field(status), field);
    exit(1);
  }
  tandem_status_free(status);
}

#define OK(call) Ok((call), #call)
#define REFUSED(field, call) Refused((call), #call, (field))

static tandem_client* client;
static tandem_group* group;

static void Join(void) {
  const char* names[] = {"placement"};
  const char* values[] = {"engine"};
  tandem_join_options good, bad;
  tandem_join_options_init(&good, sizeof(good));
  good.job_key = "\xff\xfe a key of any bytes";
  good.job_key_bytes = strlen(good.job_key);
  good.name = "caf\xc3\xa9";
  good.option_names = names;
  good.option_values = values;
  good.option_count = 1;
  good.deadline_ms = kWaitBudget;
  for (int i = 0; i < kBads; ++i) {
    bad = good;
    bad.name = kBad[i];
    REFUSED("name", tandem_join_group(client, &bad, &group));
    bad = good;
    bad.gpu_uuid = kBad[i];
    REFUSED("gpu_uuid", tandem_join_group(client, &bad, &group));
    names[0] = kBad[i];
    REFUSED("options", tandem_join_group(client, &good, &group));
    names[0] = "placement";
    values[0] = kBad[i];
    REFUSED("options[placement]", tandem_join_group(client, &good, &group));
    values[0] = "engine";
  }
  OK(tandem_join_group(client, &good, &group));
}

static void Memory(void) {
  const int64_t shape[] = {kCount};
  const char* gpu = tandem_group_gpu_uuid(group);
  tandem_memory* memory;
  uint64_t tensor;
  for (int i = 0; i < kBads; ++i) {
    REFUSED("persistent_name",
            tandem_allocate(group, shape, 1, TANDEM_DTYPE_F32, kBad[i], kWaitBudget, &memory));
    REFUSED("persistent_name", tandem_empty(client, shape, 1, TANDEM_DTYPE_F32, gpu, kBad[i], &tensor));
    REFUSED("gpu_uuid", tandem_empty(client, shape, 1, TANDEM_DTYPE_F32, kBad[i], NULL, &tensor));
    REFUSED("gpu_uuid", tandem_allocate_registered(client, 64, kBad[i], &memory));
  }
  OK(tandem_allocate(group, shape, 1, TANDEM_DTYPE_F32, "caf\xc3\xa9", kWaitBudget, &memory));
  tandem_memory_free(memory);
}

static void Plans(void) {
  const int64_t shape[] = {kCount};
  tandem_operand operands[2];
  tandem_request request;
  tandem_plan* plan;
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
  for (int autotune = 0; autotune < 2; ++autotune) {
    request.autotune = autotune;
    for (int i = 0; i < kBads; ++i)
      REFUSED("key", tandem_prepare(group, kBad[i], &request, kWaitBudget, &plan));
  }
  OK(tandem_prepare(group, "caf\xc3\xa9", &request, kWaitBudget, &plan));
  tandem_plan_free(plan);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (int i = 0; i < kBads; ++i) REFUSED("name", tandem_connect(argv[1], kBad[i], kWaitBudget, &client));
  OK(tandem_connect(argv[1], NULL, kWaitBudget, &client));
  Join();
  Memory();
  Plans();
  OK(tandem_client_check(client));
  tandem_group_free(group);
  tandem_client_free(client);
  return 0;
}
