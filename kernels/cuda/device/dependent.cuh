// File: dependent.cuh
//
// Programmatic dependent launch, from within a kernel (CUDA C++ Programming Guide, "Programmatic Dependent
// Launch and Synchronization"). A kernel that LaunchDependent has enqueued may begin while the kernel before
// it ends. Before sm_90 there is none, and both functions do nothing.
#pragma once

namespace tandem::cuda {

// By every thread, before it reads what work before this kernel may write, and before it writes anything:
// that work has ended with all its effects.
__device__ __forceinline__ void WaitForPrimary() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// By a thread of each block, once all kernels that the block waits for have begun: the next kernel may take
// its place on the GPU. After an earlier call it could take the place of a kernel that a peer still waits
// for.
__device__ __forceinline__ void TriggerDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tandem::cuda
