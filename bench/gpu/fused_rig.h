// File: fused_rig.h
//
// The common parts of the benchmarks of the fused kernels: a GPU with random operands and a timed stream, and
// arms that alternate in random order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drivers/cuda/cuda_driver.h"
#include "kernels/backend.h"
#include "kernels/cuda/fused/fused_launch.h"
#include "tandem/dtype.h"

namespace tandem::bench {

[[noreturn]] void Fail(const Status& status, const char* what);
template <typename Value>
Value Must(Result<Value> result, const char* what) {
  if (!result.ok()) Fail(result.status(), what);
  return std::move(result).value();
}
inline void Must(const Status& status, const char* what) {
  if (!status.ok()) Fail(status, what);
}

// "ok" or "WRONG", for a check's line; after one of the latter ExitStatus() is 1.
const char* Verdict(bool right);
int ExitStatus();

double Median(std::vector<double> values);
DeviceView Dense(std::byte* data, DType type, std::vector<int64_t> extent);

// One GPU. One thread uses it at a time.
class Gpu {
 public:
  explicit Gpu(int device);
  Backend& backend() { return *backend_; }
  Lane& lane() { return *lane_; }
  CUstream stream() const;
  cuda::CudaDriver& driver() { return *driver_; }
  // Makes the GPU's context current on this thread.
  void Enter();
  // Memory of this GPU, random or zero; `fd`, if given, takes its descriptor. Until Clear().
  std::byte* Random(size_t bytes, DType type, UniqueFd* fd = nullptr);
  std::byte* Zero(size_t bytes, UniqueFd* fd = nullptr);
  // A peer's memory.
  std::byte* Map(const UniqueFd& fd, size_t bytes);
  // Frees all memory; the stream must be idle.
  void Clear();
  void Start();
  // Microseconds from Start to what is on the stream now; waits for it.
  double Stop();
  void Download(void* to, const void* from, size_t bytes);
  void Upload(void* to, const void* from, size_t bytes) { Download(to, from, bytes); }

 private:
  std::byte* Allocate(size_t bytes, UniqueFd* fd);

  uint32_t seed_;  // every GPU has other values
  cuda::CudaDriver* driver_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Lane> lane_;
  CUevent start_, end_;
  std::vector<std::unique_ptr<Segment>> segments_;
};

// Memory that the fused kernel's launches on `gpu` need; until it is cleared.
cuda::FusedMemory MemoryOf(Gpu& gpu);

// A way to do the work; returns microseconds.
struct Arm {
  std::string name;
  std::function<double()> run;
  std::vector<double> times;
};

// Runs every arm once to warm up, then all of them `rounds` times, each round in a random order.
void Alternate(std::vector<Arm>& arms, int rounds);
// The median over rounds of arm's time over base's.
double MedianRatio(const Arm& arm, const Arm& base);

// Relative norm of the difference of two vectors of elements of `type`, given as bytes or as they are.
double RelativeError(std::span<const std::byte> got, std::span<const std::byte> want, DType type);
inline double RelativeError(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want, DType type) {
  return RelativeError(std::as_bytes(std::span(got)), std::as_bytes(std::span(want)), type);
}

}  // namespace tandem::bench
