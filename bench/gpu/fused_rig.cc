#include "bench/gpu/fused_rig.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/fused/fused_launch.h"
#include "kernels/cuda/lane/cuda_lane.h"
#include "kernels/cuda/skinny/skinny_matmul.h"
#include "tandem/op_request.h"

namespace tandem::bench {
namespace {

constexpr size_t kRigPage = size_t{2} << 20;

bool all_right = true;

size_t Whole(size_t bytes) { return (bytes + kRigPage - 1) / kRigPage * kRigPage; }

}  // namespace

void Fail(const Status& status, const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

const char* Verdict(bool right) {
  all_right = all_right && right;
  return right ? "ok" : "WRONG";
}

int ExitStatus() { return all_right ? 0 : 1; }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

DeviceView Dense(std::byte* data, DType type, std::vector<int64_t> extent) {
  std::vector<int64_t> stride = ContiguousStrides(extent);
  return {data, type, std::move(extent), std::move(stride)};
}

Gpu::Gpu(int device)
    : seed_(static_cast<uint32_t>(device) << 16),
      driver_(Must(cuda::LoadCudaDriver(), "driver")),
      backend_(Must(MakeCudaBackend({.device = device, .matmul_candidates = 8}), "backend")),
      lane_(Must(backend_->MakeLane(0), "lane")),
      start_(Must(driver_->EventCreate(CU_EVENT_DEFAULT), "event")),
      end_(Must(driver_->EventCreate(CU_EVENT_DEFAULT), "event")) {
  Must(cuda::LoadFusedKernels(), "kernels");
  Must(cuda::LoadSkinnyKernels(), "kernels");
}

CUstream Gpu::stream() const { return dynamic_cast<cuda::CudaLane&>(*lane_).stream(); }

void Gpu::Enter() { (void)Must(backend_->MakeEvent(), "event"); }

std::byte* Gpu::Allocate(size_t bytes, UniqueFd* fd) {
  UniqueFd own = Must(backend_->AllocateSegment(Whole(bytes)), "segment");
  segments_.push_back(Must(backend_->MapSegment(own.get(), Whole(bytes)), "mapping"));
  if (fd != nullptr) *fd = std::move(own);
  return segments_.back()->data();
}

std::byte* Gpu::Random(size_t bytes, DType type, UniqueFd* fd) {
  std::byte* data = Allocate(bytes, fd);
  Must(cuda::LaunchRandom(data, type, static_cast<int64_t>(Whole(bytes) / DTypeBytes(type)),
                          seed_ + static_cast<uint32_t>(segments_.size()), stream()),
       "random");
  return data;
}

std::byte* Gpu::Zero(size_t bytes, UniqueFd* fd) {
  std::byte* data = Allocate(bytes, fd);
  Must(driver_->MemsetD8Async(reinterpret_cast<CUdeviceptr>(data), 0, Whole(bytes), stream()), "memset");
  Must(driver_->StreamSynchronize(stream()), "memset");
  return data;
}

std::byte* Gpu::Map(const UniqueFd& fd, size_t bytes) {
  segments_.push_back(Must(backend_->MapSegment(fd.get(), Whole(bytes)), "peer mapping"));
  return segments_.back()->data();
}

void Gpu::Clear() {
  Enter();
  Must(driver_->StreamSynchronize(stream()), "clear");
  segments_.clear();
}

void Gpu::Start() {
  Enter();
  Must(driver_->EventRecord(start_, stream()), "record");
}

double Gpu::Stop() {
  Must(driver_->EventRecord(end_, stream()), "record");
  Must(driver_->StreamSynchronize(stream()), "work");
  return 1e3 * static_cast<double>(Must(driver_->EventElapsedTime(start_, end_), "time"));
}

void Gpu::Download(void* to, const void* from, size_t bytes) {
  Enter();
  Must(driver_->MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                            stream()),
       "download");
  Must(driver_->StreamSynchronize(stream()), "download");
}

cuda::FusedMemory MemoryOf(Gpu& gpu) {
  return {.state = gpu.Zero(cuda::kFusedStateBytes), .partials = gpu.Zero(cuda::kPartialBytes)};
}

void Alternate(std::vector<Arm>& arms, int rounds) {
  for (Arm& arm : arms) arm.run();
  std::mt19937 random(7);
  std::vector<size_t> order(arms.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i : order) arms[i].times.push_back(arms[i].run());
  }
}

double MedianRatio(const Arm& arm, const Arm& base) {
  std::vector<double> ratios;
  for (size_t i = 0; i < arm.times.size(); ++i) ratios.push_back(arm.times[i] / base.times[i]);
  return Median(ratios);
}

double RelativeError(std::span<const std::byte> got, std::span<const std::byte> want, DType type) {
  double difference = 0, norm = 0;
  const size_t count = want.size() / DTypeBytes(type);
  const size_t step = count > (size_t{1} << 24) ? 13 : 1;  // a sample of large ones
  for (size_t i = 0; i < count; i += step) {
    double w = LoadAsFloat(want.data(), type, i), g = LoadAsFloat(got.data(), type, i);
    difference += (g - w) * (g - w);
    norm += w * w;
  }
  return std::sqrt(difference / norm);
}

}  // namespace tandem::bench
