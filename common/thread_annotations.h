// File: thread_annotations.h
//
// Clang's thread-safety attributes under the names that Abseil and the Clang manual use. They state which
// mutex guards a field and which mutex a function needs; `clang++ -Wthread-safety` checks the statements,
// other compilers see nothing.
//
// Example:
//   Mutex mutex_;
//   int count_ TANDEM_GUARDED_BY(mutex_) = 0;
//   void AddLocked() TANDEM_REQUIRES(mutex_);
//   changed_.wait(lock.fused(), [this]() TANDEM_REQUIRES(mutex_) { return count_ > 0; });
#pragma once

#if defined(__clang__)
#define TANDEM_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define TANDEM_THREAD_ATTRIBUTE(x)
#endif

// A class whose objects can be held, as a mutex; `name` appears in the compiler's messages.
#define TANDEM_CAPABILITY(name) TANDEM_THREAD_ATTRIBUTE(capability(name))
// A class that acquires in its constructor and releases in its destructor.
#define TANDEM_SCOPED_CAPABILITY TANDEM_THREAD_ATTRIBUTE(scoped_lockable)
// The field is read and written only by holders.
#define TANDEM_GUARDED_BY(x) TANDEM_THREAD_ATTRIBUTE(guarded_by(x))
// The object behind the pointer is read and written only by holders.
#define TANDEM_PT_GUARDED_BY(x) TANDEM_THREAD_ATTRIBUTE(pt_guarded_by(x))
// The caller holds it, before and after.
#define TANDEM_REQUIRES(...) TANDEM_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
// The caller does not hold it.
#define TANDEM_EXCLUDES(...) TANDEM_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// The function acquires it; without an argument: this object.
#define TANDEM_ACQUIRE(...) TANDEM_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
// The function releases it; without an argument: this object.
#define TANDEM_RELEASE(...) TANDEM_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
// The function acquires it where it returns the first argument.
#define TANDEM_TRY_ACQUIRE(...) TANDEM_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
// The function fails at run time unless it is held.
#define TANDEM_ASSERT_CAPABILITY(x) TANDEM_THREAD_ATTRIBUTE(assert_capability(x))
// The function's body is not checked; callers are.
#define TANDEM_NO_THREAD_SAFETY_ANALYSIS TANDEM_THREAD_ATTRIBUTE(no_thread_safety_analysis)
