/* File: tandem.h
 *
 * The C interface of the client library; tandem/client.h has the meaning of every call. Objects are opaque
 * handles, owned by the caller and ended by their tandem_*_free, which may be called in any order. Functions
 * return NULL on success, else a tandem_status that the caller frees. Thread rule, and what is left after a
 * fork: as in client.h; one status is for one thread.
 *
 *   tandem_client* client;
 *   tandem_status* status = tandem_connect(NULL, NULL, 5000, &client);
 *   if (status) { puts(tandem_status_message(status)); tandem_status_free(status); }
 */
#ifndef TANDEM_TANDEM_H_
#define TANDEM_TANDEM_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_C_API __attribute__((visibility("default")))

/* Grows when this interface changes; a program compares tandem_abi_version() with it. */
#define TANDEM_ABI_VERSION 2
TANDEM_C_API int tandem_abi_version(void);

typedef struct tandem_status tandem_status;
typedef struct tandem_client tandem_client;
typedef struct tandem_group tandem_group;
typedef struct tandem_plan tandem_plan;
typedef struct tandem_memory tandem_memory; /* registered memory or a symmetric tensor */
typedef struct tandem_stream tandem_stream; /* a host stream */
typedef struct tandem_graph tandem_graph;   /* an executable graph of one */

/* Statuses. Codes are gRPC's. NULL is OK: code 0, empty texts. Texts live as long as the status. */
TANDEM_C_API int tandem_status_code(const tandem_status* status);
TANDEM_C_API const char* tandem_status_message(const tandem_status* status);
TANDEM_C_API const char* tandem_status_reason(const tandem_status* status);
TANDEM_C_API const char* tandem_status_who(const tandem_status* status);
TANDEM_C_API const char* tandem_status_field(const tandem_status* status);
TANDEM_C_API void tandem_status_free(tandem_status* status);

/* Sessions. `runtime_dir` and `name` may be NULL. */
TANDEM_C_API tandem_status* tandem_connect(const char* runtime_dir, const char* name, uint32_t deadline_ms,
                                           tandem_client** client);
TANDEM_C_API void tandem_client_free(tandem_client* client);
TANDEM_C_API uint64_t tandem_client_session_id(const tandem_client* client);
TANDEM_C_API const char* tandem_client_backend(const tandem_client* client);
TANDEM_C_API const char* tandem_client_daemon_version(const tandem_client* client);
TANDEM_C_API int tandem_client_gpu_count(const tandem_client* client);
/* NULL if there is no such GPU. */
TANDEM_C_API const char* tandem_client_gpu_uuid(const tandem_client* client, int index);
/* The UUID of this process's CUDA device `ordinal`, as the daemon names it: for tandem_join_options.gpu_uuid.
 */
TANDEM_C_API tandem_status* tandem_cuda_device_uuid(int ordinal, char* uuid, size_t uuid_bytes);
TANDEM_C_API tandem_status* tandem_client_check(tandem_client* client);
TANDEM_C_API tandem_status* tandem_client_detach(tandem_client* client);
/* `kind` is tandem::ClientEvent::Kind. `status` may be NULL and is the library's. Must not block. It may free
 * handles, also the client. Not called any more once tandem_client_on_event with another (or NULL) or
 * tandem_client_free has returned. */
typedef void (*tandem_event_callback)(void* user, int kind, uint64_t group_id, int rank,
                                      const tandem_status* status);
TANDEM_C_API void tandem_client_on_event(tandem_client* client, tandem_event_callback callback, void* user);

/* Groups. */
typedef struct tandem_join_options {
  const void* job_key;
  size_t job_key_bytes;
  const char* name;
  int world_size;
  int rank;
  const char* gpu_uuid; /* NULL: the GPU with index `rank` */
  uint32_t deadline_ms;
  uint64_t launch_deadline_ms;     /* 0: the daemon's default */
  const char* const* option_names; /* must agree on all ranks */
  const char* const* option_values;
  size_t option_count;
} tandem_join_options;
TANDEM_C_API tandem_status* tandem_join_group(tandem_client* client, const tandem_join_options* options,
                                              tandem_group** group);
TANDEM_C_API void tandem_group_free(tandem_group* group);
TANDEM_C_API uint64_t tandem_group_id(const tandem_group* group);
TANDEM_C_API int tandem_group_rank(const tandem_group* group);
TANDEM_C_API int tandem_group_world_size(const tandem_group* group);
TANDEM_C_API uint64_t tandem_group_incarnation(const tandem_group* group);
TANDEM_C_API const char* tandem_group_gpu_uuid(const tandem_group* group);
TANDEM_C_API const char* tandem_group_topology_class(const tandem_group* group);
TANDEM_C_API int tandem_group_links(const tandem_group* group, int from, int to);
TANDEM_C_API tandem_status* tandem_group_leave(tandem_group* group, uint32_t deadline_ms);

/* Memory. dtypes are tandem::DType. */
TANDEM_C_API tandem_status* tandem_allocate(tandem_group* group, const int64_t* shape, size_t dims, int dtype,
                                            const char* persistent_name, uint32_t deadline_ms,
                                            tandem_memory** tensor);
TANDEM_C_API tandem_status* tandem_empty(tandem_client* client, const int64_t* shape, size_t dims, int dtype,
                                         const char* gpu_uuid, const char* persistent_name, uint64_t* tensor);
TANDEM_C_API tandem_status* tandem_rendezvous(tandem_client* client, uint64_t tensor, tandem_group* group,
                                              uint32_t deadline_ms, tandem_memory** memory);
TANDEM_C_API tandem_status* tandem_free_tensor(tandem_client* client, uint64_t tensor);
TANDEM_C_API tandem_status* tandem_register_fd(tandem_client* client, int fd, size_t bytes,
                                               const char* gpu_uuid, tandem_memory** memory);
TANDEM_C_API tandem_status* tandem_allocate_registered(tandem_client* client, size_t bytes,
                                                       const char* gpu_uuid, tandem_memory** memory);
/* Memory of the caller's own on a GPU, by its device pointer: cudaMalloc's, or VMM memory that can be
 * exported as POSIX descriptors. The same allocation again is found again. */
TANDEM_C_API tandem_status* tandem_register_cuda(tandem_client* client, const void* device_pointer,
                                                 size_t bytes, tandem_memory** memory);
TANDEM_C_API void tandem_memory_free(tandem_memory* memory);
/* An address of this process: of the host on the host backend, of the device on CUDA. */
TANDEM_C_API void* tandem_memory_data(const tandem_memory* memory);
TANDEM_C_API size_t tandem_memory_bytes(const tandem_memory* memory);
TANDEM_C_API uint64_t tandem_memory_registration_id(const tandem_memory* memory);
/* Of symmetric tensors only; FAILED_PRECONDITION for other memory. */
TANDEM_C_API tandem_status* tandem_tensor_get_buffer(const tandem_memory* tensor, int peer,
                                                     const int64_t* shape, size_t dims, int dtype,
                                                     size_t offset_bytes, void** buffer);
TANDEM_C_API tandem_status* tandem_tensor_signal_pad(const tandem_memory* tensor, int peer, uint32_t** words,
                                                     size_t* count);
TANDEM_C_API int tandem_tensor_channels(const tandem_memory* tensor);
TANDEM_C_API tandem_status* tandem_tensor_put_signal(tandem_memory* tensor, int peer, int channel,
                                                     uint32_t timeout_ms);
TANDEM_C_API tandem_status* tandem_tensor_wait_signal(tandem_memory* tensor, int peer, int channel,
                                                      uint32_t timeout_ms);
TANDEM_C_API tandem_status* tandem_tensor_barrier(tandem_memory* tensor, int channel, uint32_t timeout_ms);
TANDEM_C_API tandem_status* tandem_tensor_memset32(tandem_memory* tensor, tandem_stream* stream, int peer,
                                                   size_t offset_bytes, uint32_t value, size_t count);
/* The same two writes on a cudaStream_t (NULL: the default stream). */
TANDEM_C_API tandem_status* tandem_tensor_memset32_cuda(tandem_memory* tensor, void* cuda_stream, int peer,
                                                        size_t offset_bytes, uint32_t value, size_t count);
TANDEM_C_API tandem_status* tandem_tensor_write32_cuda(tandem_memory* tensor, void* cuda_stream, int peer,
                                                       size_t offset_bytes, uint32_t value);

/* Plans. Enumerations are those of tandem/op_request.h. */
typedef struct tandem_operand {
  int role;
  int dtype;
  const int64_t* shape;
  const int64_t* strides; /* elements; NULL: contiguous, or of a part in place the larger operand's */
  size_t dims;
  int symmetric;
  int alias_of; /* -1: own memory; else the slot with which this one is in place: both are bound alike. Of
                 * all_gather and reduce_scatter, whose smaller operand is this rank's part of the larger one,
                 * to the larger one. */
} tandem_operand;
typedef struct tandem_transfer {
  int send, peer, slot;
} tandem_transfer;
typedef struct tandem_request {
  int op;
  const tandem_operand* operands;
  size_t operand_count;
  int dim, reduce_op, root, wire, fast_accumulation, low_contention, chunk_pivot;
  const tandem_transfer* transfers;
  size_t transfer_count;
  int algorithm, steps, lanes, on_unfused;
} tandem_request;
/* A request with the defaults of tandem::OpRequest. */
TANDEM_C_API void tandem_request_init(tandem_request* request);
TANDEM_C_API tandem_status* tandem_prepare(tandem_group* group, const char* key,
                                           const tandem_request* request, uint32_t deadline_ms,
                                           tandem_plan** plan);
TANDEM_C_API void tandem_plan_free(tandem_plan* plan);
TANDEM_C_API uint64_t tandem_plan_id(const tandem_plan* plan);
TANDEM_C_API int tandem_plan_algorithm(const tandem_plan* plan);
TANDEM_C_API const char* tandem_plan_reason(const tandem_plan* plan);
TANDEM_C_API const char* tandem_plan_summary(const tandem_plan* plan);
/* All of tandem::PlanInfo as a JSON object with its field names; names of enumerations as text. The plan's.
 */
TANDEM_C_API const char* tandem_plan_json(tandem_plan* plan);
TANDEM_C_API size_t tandem_plan_slots(const tandem_plan* plan);
/* The bytes that the slot's binding must have from its offset. */
TANDEM_C_API uint64_t tandem_plan_slot_bytes(const tandem_plan* plan, size_t slot);

typedef struct tandem_binding {
  const tandem_memory* memory;
  uint64_t offset; /* bytes */
} tandem_binding;
/* `tag` may be NULL. */
TANDEM_C_API tandem_status* tandem_launch(tandem_plan* plan, tandem_stream* stream,
                                          const tandem_binding* bindings, size_t count, uint64_t deadline_ms,
                                          const char* tag);
/* On a cudaStream_t (NULL: the default stream). */
TANDEM_C_API tandem_status* tandem_launch_cuda(tandem_plan* plan, void* cuda_stream,
                                               const tandem_binding* bindings, size_t count,
                                               uint64_t deadline_ms, const char* tag);
/* The same with one device pointer a slot: into a symmetric tensor, or into memory of the caller's own, which
 * is registered when it is first seen (as by tandem_register_cuda; slow that once). NULL for a slot of no
 * bytes. */
TANDEM_C_API tandem_status* tandem_launch_cuda_pointers(tandem_plan* plan, void* cuda_stream,
                                                        void* const* pointers, size_t count,
                                                        uint64_t deadline_ms, const char* tag);
TANDEM_C_API tandem_status* tandem_launch_direct(tandem_plan* plan, const tandem_binding* bindings,
                                                 size_t count, uint64_t deadline_ms, const char* tag,
                                                 uint64_t* launch);
TANDEM_C_API tandem_status* tandem_wait_launch(tandem_plan* plan, uint64_t launch, uint32_t deadline_ms);
TANDEM_C_API tandem_status* tandem_plan_wait(tandem_plan* plan, uint32_t deadline_ms);
/* `ended` is set to 1 if all launches of the plan have ended, also those by tandem_launch_direct, else to 0.
 */
TANDEM_C_API tandem_status* tandem_plan_query(tandem_plan* plan, int* ended);
TANDEM_C_API tandem_status* tandem_plan_release(tandem_plan* plan);

/* Streams of the host backend. */
TANDEM_C_API tandem_status* tandem_stream_create(tandem_stream** stream);
TANDEM_C_API void tandem_stream_free(tandem_stream* stream);
TANDEM_C_API tandem_status* tandem_stream_enqueue(tandem_stream* stream, void (*function)(void*), void* user);
TANDEM_C_API tandem_status* tandem_stream_synchronize(tandem_stream* stream, uint32_t deadline_ms);
TANDEM_C_API tandem_status* tandem_stream_begin_capture(tandem_stream* stream);
TANDEM_C_API tandem_status* tandem_stream_end_capture(tandem_stream* stream, tandem_graph** graph);
TANDEM_C_API tandem_status* tandem_graph_launch(tandem_graph* graph, tandem_stream* stream);
TANDEM_C_API void tandem_graph_free(tandem_graph* graph);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_TANDEM_H_ */
