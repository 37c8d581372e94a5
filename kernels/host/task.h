// File: task.h
//
// `Task`: one unit of work on a host queue. A move-only callable with room for the usual captures inside it,
// so that writing a word or recording an event allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace tandem::host {

class RandomDelay;

// The parts of the queue that a running task may use.
struct TaskContext {
  // Set when the queue is shut down: every wait inside a task must end then.
  const std::atomic<bool>* abandoned = nullptr;
  // The queue's source of delays; null when the visibility-delay mode is off.
  RandomDelay* delay = nullptr;
};

// A move-only callable of `const TaskContext&`. Captures of up to `kInlineBytes` are stored inside; larger
// ones on the heap. A task runs at most once and may be destroyed without having run.
class Task {
 public:
  static constexpr size_t kInlineBytes = 48;

  template <typename F, typename D = std::decay_t<F>>
  requires(!std::is_same_v<D, Task> && std::is_invocable_v<D&, const TaskContext&>)
      Task(F&& function) {  // NOLINT(google-explicit-constructor): any callable is a task
    if constexpr (FitsInline<D>()) {
      ::new (static_cast<void*>(storage_)) D(std::forward<F>(function));
      operations_ = &kInlineOperations<D>;
    } else {
      ::new (static_cast<void*>(storage_)) D*(new D(std::forward<F>(function)));
      operations_ = &kHeapOperations<D>;
    }
  }
  Task(Task&& other) noexcept { MoveFrom(other); }
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      Destroy();
      MoveFrom(other);
    }
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { Destroy(); }

  void operator()(const TaskContext& context) { operations_->run(storage_, context); }

 private:
  struct Operations {
    void (*run)(void* storage, const TaskContext& context);
    void (*move)(void* from, void* to);  // leaves `from` destroyed
    void (*destroy)(void* storage);
  };

  template <typename D>
  static constexpr bool FitsInline() {
    return sizeof(D) <= kInlineBytes && alignof(D) <= alignof(std::max_align_t) &&
           std::is_nothrow_move_constructible_v<D>;
  }
  template <typename D>
  static constexpr Operations kInlineOperations = {
      [](void* storage, const TaskContext& context) { (*static_cast<D*>(storage))(context); },
      [](void* from, void* to) {
        ::new (to) D(std::move(*static_cast<D*>(from)));
        static_cast<D*>(from)->~D();
      },
      [](void* storage) { static_cast<D*>(storage)->~D(); }};
  template <typename D>
  static constexpr Operations kHeapOperations = {
      [](void* storage, const TaskContext& context) { (**static_cast<D**>(storage))(context); },
      [](void* from, void* to) { ::new (to) D*(*static_cast<D**>(from)); },
      [](void* storage) { delete *static_cast<D**>(storage); }};

  void MoveFrom(Task& other) {
    operations_ = std::exchange(other.operations_, nullptr);
    if (operations_ != nullptr) operations_->move(other.storage_, storage_);
  }
  void Destroy() {
    if (operations_ != nullptr) operations_->destroy(storage_);
    operations_ = nullptr;
  }

  alignas(std::max_align_t) std::byte storage_[kInlineBytes];
  const Operations* operations_ = nullptr;
};

}  // namespace tandem::host
