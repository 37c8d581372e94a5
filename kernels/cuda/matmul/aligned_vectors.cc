#include "kernels/cuda/matmul/aligned_vectors.h"

#include <cstdint>
#include <vector>

namespace tandem::cuda {

Result<bool> AlignVectors(const LtProduct& product, std::byte* scratch, CudaDriver& driver, CUstream stream,
                          LtOperands* operands) {
  constexpr size_t kSlotMultiple = 256;
  struct Vector {
    const void** place;
    size_t bytes;
  };
  const size_t rows = product.d.rows;
  std::vector<Vector> vectors;
  const auto add = [&vectors](LtScale scales, const void** place, size_t lines) {
    if (scales == LtScale::kTensor) vectors.push_back({place, sizeof(float)});
    if (scales == LtScale::kVector) vectors.push_back({place, lines * sizeof(float)});
  };
  add(product.x_scales, &operands->x_scale, rows);
  add(product.y_scales, &operands->y_scale, product.d.columns);
  if (product.has_bias)
    vectors.push_back({&operands->bias, rows * (product.bias_type == CUDA_R_32F ? 4 : 2)});
  std::erase_if(vectors, [](const Vector& vector) {
    return reinterpret_cast<uintptr_t>(*vector.place) % kVectorAlignment == 0;
  });
  size_t needed = 0;
  for (const Vector& vector : vectors)
    needed += (vector.bytes + kSlotMultiple - 1) / kSlotMultiple * kSlotMultiple;
  if (needed > kVectorScratchBytes) return false;
  for (const Vector& vector : vectors) {
    TANDEM_RETURN_IF_ERROR(driver.MemcpyAsync(reinterpret_cast<CUdeviceptr>(scratch),
                                              reinterpret_cast<CUdeviceptr>(*vector.place), vector.bytes,
                                              stream));
    *vector.place = scratch;
    scratch += (vector.bytes + kSlotMultiple - 1) / kSlotMultiple * kSlotMultiple;
  }
  return true;
}

}  // namespace tandem::cuda
