/* File: c_dlpack.h
 *
 * What a binding for another language needs to hand memory on by DLPack. Consumers call a DLManagedTensor's
 * deleter from any thread, also where the language's runtime unwinds an exception: torch does when a
 * temporary tensor of a failing call ends. So the deleter must be native, and must keep that exception. */
#ifndef TANDEM_C_DLPACK_H_
#define TANDEM_C_DLPACK_H_

#include "tandem/c_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Functions of the language's runtime. */
typedef void (*tandem_dlpack_release)(void* object); /* ends one reference to an object */
typedef int (*tandem_dlpack_is_running)(void);       /* 0: the runtime has ended */
typedef int (*tandem_dlpack_enter)(void);            /* takes the runtime's lock */
typedef void (*tandem_dlpack_leave)(int entered);    /* gives back what enter() returned */
/* The thread's exception under way, if any: taken aside, and made the one under way again. */
typedef void (*tandem_dlpack_set_aside)(void** type, void** value, void** trace);
typedef void (*tandem_dlpack_bring_back)(void* type, void* value, void* trace);

/* The object that keeps a DLManagedTensor's memory, and what lets go of it. No function is NULL. Once the
 * runtime has ended, none but `is_running` is called. */
typedef struct tandem_dlpack_owner {
  void* object;
  tandem_dlpack_release release;
  tandem_dlpack_is_running is_running;
  tandem_dlpack_enter enter;
  tandem_dlpack_leave leave;
  tandem_dlpack_set_aside set_aside;
  tandem_dlpack_bring_back bring_back;
} tandem_dlpack_owner;

/* A deleter for a DLManagedTensor whose manager_ctx is a tandem_dlpack_owner: releases the object, with which
 * the DLManagedTensor and the tandem_dlpack_owner may end. Thread-safe. */
TANDEM_C_API void tandem_dlpack_delete(void* managed);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_DLPACK_H_ */
