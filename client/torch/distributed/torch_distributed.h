/* File: torch_distributed.h
 *
 * libtandem_c10d_MAJOR_MINOR.so: the collectives of torch.distributed by Tandem, for one version of PyTorch, whose
 * C++ interface it uses. The Python package loads it and calls these functions by ctypes; programs do not. */
#ifndef TANDEM_CLIENT_TORCH_DISTRIBUTED_TORCH_DISTRIBUTED_H_
#define TANDEM_CLIENT_TORCH_DISTRIBUTED_TORCH_DISTRIBUTED_H_

#include <stddef.h>

#define TANDEM_C10D_VERSION 2
#define TANDEM_C10D_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* How Python declines the call that this thread has come from: this one alone, all of its kind, or the group's. */
enum tandem_c10d_decline { TANDEM_C10D_ONCE = 1, TANDEM_C10D_KIND = 2, TANDEM_C10D_GROUP = 3 };

TANDEM_C10D_API int tandem_c10d_version(void);
/* Whether a process group's collectives are taken: on the CPU's tensors, or on the GPUs'. Alike on all its ranks. */
typedef int (*tandem_c10d_takes_fn)(const char* group, int on_cpu);

/* Takes the collectives from now on, of the groups for which `takes` returns 1, or of all if it is null. A group is
 * asked for at its first collective after each call. `takes` may run on any thread. torch.ops.tandem must be there.
 * Returns 0 where torch refuses. Not thread-safe. */
TANDEM_C10D_API int tandem_c10d_install(tandem_c10d_takes_fn takes);
/* Leaves them to the process groups' backends, and forgets what was declined. */
TANDEM_C10D_API void tandem_c10d_uninstall(void);
/* Declines the call that this thread is in: its kernel's failure is none then, and the backend runs the call.
 * Returns 0 where the thread is in no such call. */
TANDEM_C10D_API int tandem_c10d_decline(int how, const char* reason);
/* Between two such calls, 1 and then 0, the thread's collectives go to their backends, which coalesce them. */
TANDEM_C10D_API void tandem_c10d_coalescing(int on);
/* Whether the thread is in a call of torch.distributed. */
TANDEM_C10D_API int tandem_c10d_inside(void);
/* Writes lines of "op, calls, bytes, reason" with tabs between; the reason is empty where Tandem has run the calls.
 * Writes no more than `size` bytes, and returns the size of all. */
TANDEM_C10D_API size_t tandem_c10d_tallies(char* text, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_CLIENT_TORCH_DISTRIBUTED_TORCH_DISTRIBUTED_H_ */
