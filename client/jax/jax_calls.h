/* File: jax_calls.h
 *
 * libtandem_jax.so: the calls of tandem.jax as targets of XLA's foreign function interface. The Python package
 * registers the targets and uses the functions below by ctypes; they are no public interface.
 *
 * A call has two attributes: `plan`, the plan's name in the table here, and `rows`, the launch's number of rows
 * or -1. Its operands and results are the plan's slots in order. A launch needs neither Python nor the daemon.
 *
 * Functions are usable from any thread. None of them needs Python's lock.
 */
#ifndef TANDEM_CLIENT_JAX_JAX_CALLS_H_
#define TANDEM_CLIENT_JAX_JAX_CALLS_H_

#include <stddef.h>
#include <stdint.h>

#include "tandem/tandem.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_JAX_API __attribute__((visibility("default")))
/* Grows with every change of these functions. The package refuses a library of another version. */
#define TANDEM_JAX_VERSION 1

TANDEM_JAX_API int tandem_jax_version(void);

/* The functions of the libtandem.so that the package has loaded. */
typedef struct tandem_jax_functions {
  tandem_status* (*launch_with_options)(tandem_plan*, tandem_stream*, const tandem_binding*, size_t,
                                        const tandem_launch_options*);
  tandem_status* (*launch_cuda_pointers_with_options)(tandem_plan*, void*, void* const*, size_t,
                                                      const tandem_launch_options*);
  tandem_status* (*capture_hold_begin)(void*, tandem_capture_hold**);
  tandem_status* (*plan_wait)(tandem_plan*, int64_t);
  tandem_status* (*allocate_registered)(tandem_client*, size_t, const char*, tandem_memory**);
  void* (*memory_data)(const tandem_memory*);
  void (*memory_free)(tandem_memory*);
  tandem_status* (*stream_create)(tandem_stream**);
  void (*stream_free)(tandem_stream*);
  int (*status_code)(const tandem_status*);
  const char* (*status_message)(const tandem_status*);
  const char* (*status_reason)(const tandem_status*);
  void (*status_free)(tandem_status*);
} tandem_jax_functions;
/* Called once, before all others. Copies *functions. */
TANDEM_JAX_API void tandem_jax_use(const tandem_jax_functions* functions);

/* What calls of one group on the host backend need. */
typedef struct tandem_jax_host_group {
  tandem_client* client; /* of the group; outlives tandem_jax_close_group */
  const char* gpu_uuid;
  int rank;            /* in the group */
  tandem_plan* order;  /* a broadcast of TANDEM_JAX_ORDER_BYTES bytes from rank 0 */
  int64_t deadline_ms; /* for a call that the group's rank 0 has begun and this rank has not */
} tandem_jax_host_group;
#define TANDEM_JAX_ORDER_BYTES 16
/* Begins to run the group's calls, in rank 0's order. Returns the group's number, above 0; 0 where memory is
 * out. */
TANDEM_JAX_API uint64_t tandem_jax_open_host_group(const tandem_jax_host_group* group);
/* Ends that. Calls that wait fail with CANCELLED. */
TANDEM_JAX_API void tandem_jax_close_host_group(uint64_t group);

/* Adds a plan under its name; the plan stays the caller's. `host_group`: a number of open_host_group, or 0 for
 * launches on XLA's CUDA stream. Returns 0 where memory is out or there is no such group. */
TANDEM_JAX_API int tandem_jax_add_plan(int64_t name, tandem_plan* plan, uint64_t host_group);
/* Forgets it. Waits for calls that launch it. */
TANDEM_JAX_API void tandem_jax_remove_plan(int64_t name);
/* The launches that calls have made. */
TANDEM_JAX_API uint64_t tandem_jax_launches(void);

/* The type of a call's state on the host backend, as XLA_FFI_TypeId and XLA_FFI_TypeInfo. */
TANDEM_JAX_API void* tandem_jax_site_type_id(void);
TANDEM_JAX_API const void* tandem_jax_site_type_info(void);

/* The targets, of type XLA_FFI_Handler: tandem_jax_cuda_call, tandem_jax_host_call and, with it,
 * tandem_jax_host_instantiate. */

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_CLIENT_JAX_JAX_CALLS_H_ */
