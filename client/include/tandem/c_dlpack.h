/* File: c_dlpack.h
 *
 * What a binding for another language needs to hand memory on by DLPack. Consumers call a DLManagedTensor's deleter
 * from any thread, also where the language's runtime unwinds an exception: torch does when a temporary tensor
 * of a failing call ends. So the deleter must be native, and must keep that exception. */
#ifndef TANDEM_C_DLPACK_H_
#define TANDEM_C_DLPACK_H_

#include "tandem/c_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The object that keeps a DLManagedTensor's memory, and the functions of its language's runtime. */
typedef struct tandem_dlpack_owner {
  void* object;
  void (*release)(void* object);                              /* ends one reference to it */
  int (*is_running)(void);                                    /* 0: the runtime has ended, nothing is called */
  int (*enter)(void);                                         /* takes the runtime's lock */
  void (*leave)(int entered);                                 /* gives back what enter() returned */
  void (*set_aside)(void** type, void** value, void** trace); /* the thread's exception under way */
  void (*bring_back)(void* type, void* value, void* trace);
} tandem_dlpack_owner;

/* A deleter for a DLManagedTensor whose manager_ctx is a tandem_dlpack_owner: releases the object, with which the
 * DLManagedTensor and the tandem_dlpack_owner may end. Thread-safe. */
TANDEM_C_API void tandem_dlpack_delete(void* managed);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_C_DLPACK_H_ */
