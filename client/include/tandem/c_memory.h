/* File: c_memory.h
 *
 * Memory of the C interface. Shapes are in elements, `dims` extents; offsets and sizes are in bytes. `dtype`
 * is an enum tandem_dtype.
 */
#ifndef TANDEM_C_MEMORY_H_
#define TANDEM_C_MEMORY_H_

#include <stddef.h>
#include <stdint.h>

#include "tandem/c_types.h"
#include "tandem/deadlines.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a symmetric tensor: the same call on every rank of the group, each with memory on its own GPU, mapped
 * on all ranks. Waits for the other ranks. `persistent_name` not NULL: later calls with the name get the same
 * memory while the group lives. Default deadline: TANDEM_DEFAULT_DEADLINE_MS. The caller owns *tensor; the
 * memory ends with it, unless it is persistent. DEADLINE_EXCEEDED: ranks did not come. INVALID_ARGUMENT:
 * sizes differ between ranks. RESOURCE_EXHAUSTED: memory or a quota. */
TANDEM_C_API tandem_status* tandem_allocate(tandem_group* group, const int64_t* shape, size_t dims, int dtype,
                                            const char* persistent_name, int64_t deadline_ms,
                                            tandem_memory** tensor);
/* Makes a tensor without a group on the GPU `gpu_uuid`, and writes its number to *tensor. Memory comes with
 * the first tandem_rendezvous. `persistent_name` may be NULL. The tensor lives until tandem_free_tensor or
 * the session's end. NOT_FOUND: no such GPU. RESOURCE_EXHAUSTED: a quota. */
TANDEM_C_API tandem_status* tandem_empty(tandem_client* client, const int64_t* shape, size_t dims, int dtype,
                                         const char* gpu_uuid, const char* persistent_name, uint64_t* tensor);
/* Makes the tensors of all ranks of the group one symmetric tensor. Waits for the other ranks. A tensor may
 * meet in several groups. Default deadline: TANDEM_DEFAULT_DEADLINE_MS. The caller owns *memory. Errors:
 * those of tandem_allocate; NOT_FOUND for an unknown tensor. */
TANDEM_C_API tandem_status* tandem_rendezvous(tandem_client* client, uint64_t tensor, tandem_group* group,
                                              int64_t deadline_ms, tandem_memory** memory);
/* Ends a tensor of tandem_empty. Its memory goes with the last handle. NOT_FOUND: no such tensor. */
TANDEM_C_API tandem_status* tandem_free_tensor(tandem_client* client, uint64_t tensor);
/* Registers the first `bytes` of memory on the GPU behind the descriptor `fd`, which stays the caller's: on
 * the host backend a memfd sealed against shrinking, on CUDA an exported VMM allocation of `bytes`. The
 * caller owns *memory; the registration ends with it. INVALID_ARGUMENT: another kind of descriptor, or a
 * smaller one. RESOURCE_EXHAUSTED: a quota. */
TANDEM_C_API tandem_status* tandem_register_fd(tandem_client* client, int fd, size_t bytes,
                                               const char* gpu_uuid, tandem_memory** memory);
/* Makes memory of `bytes` on the GPU and registers it; on CUDA this process must see that GPU. The caller
 * owns *memory; memory and registration end with it. RESOURCE_EXHAUSTED: memory or a quota. */
TANDEM_C_API tandem_status* tandem_allocate_registered(tandem_client* client, size_t bytes,
                                                       const char* gpu_uuid, tandem_memory** memory);
/* Registers [device_pointer, device_pointer + bytes), memory of the caller's own on a GPU: cudaMalloc's, or
 * VMM memory that can be exported as POSIX descriptors. The same memory again costs a look-up. The
 * registration lasts until the memory is freed or the session ends; the handle, which the caller owns, only
 * names it. INVALID_ARGUMENT, reason NOT_REGISTRABLE: other memory; the message says which memory to use.
 * FAILED_PRECONDITION, reason MEMORY_FREED: on later use, the memory has been freed. RESOURCE_EXHAUSTED: a
 * quota. */
TANDEM_C_API tandem_status* tandem_register_cuda(tandem_client* client, const void* device_pointer,
                                                 size_t bytes, tandem_memory** memory);
/* Drops the handle. Launches in flight and graphs keep what they use. NULL is allowed. */
TANDEM_C_API void tandem_memory_free(tandem_memory* memory);
/* Returns this rank's bytes, an address of this process: of the host on the host backend, of the device on
 * CUDA. Valid while the handle lives, which must be longer than the work on streams that uses the address.
 * NULL for NULL. */
TANDEM_C_API void* tandem_memory_data(const tandem_memory* memory);
/* Returns the size in bytes; 0 for NULL. */
TANDEM_C_API size_t tandem_memory_bytes(const tandem_memory* memory);
/* Returns the registration's number; 0 for NULL. */
TANDEM_C_API uint64_t tandem_memory_registration_id(const tandem_memory* memory);

/* Bytes of Tandem's memory that this process holds, by use; tandem::MemoryUsage (tandem/memory_usage.h) says what counts.
 * Set up by tandem_memory_usage_init, and filled by the two functions below. */
typedef struct tandem_memory_usage {
  size_t struct_size;       /* set by tandem_memory_usage_init */
  uint64_t symmetric_bytes; /* this rank's parts of symmetric tensors, as they were asked for */
  uint64_t workspace_bytes; /* this rank's scratch memory for client-placed plans */
  uint64_t signal_bytes;    /* this rank's signals and packets of client-placed plans */
  uint64_t segment_bytes;   /* this rank's segments, whole: those of the three fields above */
  uint64_t peer_bytes; /* peers' segments that are mapped here: addresses, no memory of this rank's GPU */
  uint64_t registered_bytes; /* of tandem_register_fd and tandem_allocate_registered; 0 for a group */
  uint64_t imported_bytes;   /* the caller's own GPU memory, registered by its address; 0 for a group */
  uint64_t host_bytes; /* shared with tandemd and engines: verdict pages, and of a client its channels */
} tandem_memory_usage;
/* Sets all fields to 0. `struct_size` is sizeof(tandem_memory_usage) of the caller's header. NULL is allowed. */
TANDEM_C_API void tandem_memory_usage_init(tandem_memory_usage* usage, size_t struct_size);
/* Writes what this process holds for all groups of the client and for none to *usage. A segment that groups share
 * counts once. Needs no daemon, and works after tandem_client_detach. */
TANDEM_C_API tandem_status* tandem_client_memory(const tandem_client* client, tandem_memory_usage* usage);
/* The same of one group, also after tandem_group_leave. */
TANDEM_C_API tandem_status* tandem_group_memory(const tandem_group* group, tandem_memory_usage* usage);

/* The following are for symmetric tensors: FAILED_PRECONDITION for other memory. */

/* Writes to *buffer the address in this process of `peer`'s tensor, `offset_bytes` on, where a tensor of the
 * shape must fit. OUT_OF_RANGE: no such rank, or beyond the tensor. */
TANDEM_C_API tandem_status* tandem_tensor_get_buffer(const tandem_memory* tensor, int peer,
                                                     const int64_t* shape, size_t dims, int dtype,
                                                     size_t offset_bytes, void** buffer);
/* Writes to *words and *count the caller's own signal pad on `peer`: 32-bit words, zero at the rendezvous,
 * which only the caller and the signal functions below change. A device address on CUDA. OUT_OF_RANGE: no
 * such rank. */
TANDEM_C_API tandem_status* tandem_tensor_signal_pad(const tandem_memory* tensor, int peer, uint32_t** words,
                                                     size_t* count);
/* Returns the number of signal channels; 0 for NULL and for memory that is not symmetric. */
TANDEM_C_API int tandem_tensor_channels(const tandem_memory* tensor);
/* Signals `peer` on `channel`, 0 to tandem_tensor_channels() - 1. Waits until the peer has taken the signal
 * before. Default deadline of these three: TANDEM_DEFAULT_DEADLINE_MS. DEADLINE_EXCEEDED: the peer has not
 * taken it; tandem_status_ranks returns the peer. OUT_OF_RANGE: no such rank or channel. */
TANDEM_C_API tandem_status* tandem_tensor_put_signal(tandem_memory* tensor, int peer, int channel,
                                                     int64_t deadline_ms);
/* Waits for the peer's signal on `channel` and takes it. Errors: those of tandem_tensor_put_signal. */
TANDEM_C_API tandem_status* tandem_tensor_wait_signal(tandem_memory* tensor, int peer, int channel,
                                                      int64_t deadline_ms);
/* Waits for all ranks on `channel`. Errors: those of tandem_tensor_put_signal; the ranks are those that did
 * not come. */
TANDEM_C_API tandem_status* tandem_tensor_barrier(tandem_memory* tensor, int channel, int64_t deadline_ms);
/* Enqueues on the stream: `count` 32-bit words of `peer`'s tensor from `offset_bytes` (a multiple of 4)
 * become `value`. OUT_OF_RANGE: no such rank, or beyond the tensor. INVALID_ARGUMENT: a crooked offset, or a
 * stream of another backend. */
TANDEM_C_API tandem_status* tandem_tensor_memset32(tandem_memory* tensor, tandem_stream* stream, int peer,
                                                   size_t offset_bytes, uint32_t value, size_t count);
/* The same on a cudaStream_t (NULL: the legacy default stream), for `count` words and for one. */
TANDEM_C_API tandem_status* tandem_tensor_memset32_cuda(tandem_memory* tensor, void* cuda_stream, int peer,
                                                        size_t offset_bytes, uint32_t value, size_t count);
TANDEM_C_API tandem_status* tandem_tensor_write32_cuda(tandem_memory* tensor, void* cuda_stream, int peer,
                                                       size_t offset_bytes, uint32_t value);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_MEMORY_H_ */
