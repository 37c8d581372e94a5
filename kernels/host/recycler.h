// File: recycler.h
//
// `Recycler`: objects that are used again and again, with the room that their containers have come to have. A
// lane takes one for each operation, so that enqueueing allocates nothing once it has seen its largest
// operations.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tandem::host {

// Thread rule: handles may be taken and dropped on any thread. A handle may outlive its recycler.
template <typename T>
class Recycler {
 private:
  struct Pool {
    std::mutex mutex;
    std::vector<std::unique_ptr<T>> idle;
  };
  struct GiveBack {
    std::shared_ptr<Pool> pool;
    void operator()(T* object) const {
      std::lock_guard lock(pool->mutex);
      pool->idle.emplace_back(object);
    }
  };

 public:
  using Handle = std::unique_ptr<T, GiveBack>;

  // An object as its last user left it, or a new one.
  Handle Take() {
    {
      std::lock_guard lock(pool_->mutex);
      if (!pool_->idle.empty()) {
        Handle handle(pool_->idle.back().release(), GiveBack{pool_});
        pool_->idle.pop_back();
        return handle;
      }
    }
    return Handle(new T(), GiveBack{pool_});
  }

 private:
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

}  // namespace tandem::host
