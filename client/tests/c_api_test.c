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

int main(void) {
  tandem_client* client = NULL;
  tandem_stream* stream = NULL;
  tandem_graph* graph = NULL;
  tandem_request request;
  int count = 0;

  CHECK(tandem_abi_version() == TANDEM_ABI_VERSION);
  CHECK(tandem_status_code(NULL) == 0 && strcmp(tandem_status_message(NULL), "") == 0);

  tandem_status* status = tandem_connect("/nonexistent", "c-test", 1000, &client);
  CHECK(status != NULL && client == NULL);
  CHECK(tandem_status_code(status) == 14); /* UNAVAILABLE */
  CHECK(strstr(tandem_status_message(status), "/nonexistent/lease.sock") != NULL);
  tandem_status_free(status);

  tandem_request_init(&request);
  CHECK(request.fast_accumulation == 1 && request.operand_count == 0);

  CHECK(tandem_stream_create(&stream) == NULL);
  CHECK(tandem_stream_enqueue(stream, AddOne, &count) == NULL);
  CHECK(tandem_stream_synchronize(stream, 10000) == NULL);
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
