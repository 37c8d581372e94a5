#include "kernels/cuda/matmul/dense_operands.h"

#include "kernels/cuda/device/launch.h"

namespace tandem::cuda {
namespace {

constexpr int64_t kPitchMultiple = 16;  // cuBLASLt's, in elements of one byte
constexpr size_t kAlignment = 256;

// `view` reads [along, across] = [K, N] or [K, M]: dense across, apart along K.
void Add(bool of_a, int64_t along, int64_t across, int64_t pitch, DenseProduct* product) {
  DenseProduct::Copy copy{of_a,
                          along,
                          across,
                          pitch,
                          (along + kPitchMultiple - 1) / kPitchMultiple * kPitchMultiple,
                          product->scratch_bytes};
  DeviceView& view = of_a ? product->args.a : product->args.b;
  if (of_a) {
    view.stride = {copy.out_pitch, 1};
  } else {
    view.stride = {1, copy.out_pitch};
  }
  const auto bytes = static_cast<size_t>(across * copy.out_pitch);
  product->scratch_bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  product->copies.push_back(copy);
}

}  // namespace

DenseProduct MakeDense(const MatmulArgs& args) {
  DenseProduct product;
  product.args = args;
  if (!IsFloat8(args.a.dtype) || !IsFloat8(args.b.dtype)) return product;
  const DeviceView &a = args.a, &b = args.b;
  if (b.extent.size() == 2 && b.extent[0] > 1 && b.extent[1] > 0 && b.stride[0] != 1 && b.stride[1] == 1) {
    Add(false, b.extent[0], b.extent[1], b.stride[0], &product);
  }
  if (!args.has_chunk_signals && a.extent.size() == 2 && a.extent[1] > 1 && a.extent[0] > 0 &&
      a.stride[1] != 1 && a.stride[0] == 1) {
    Add(true, a.extent[1], a.extent[0], a.stride[1], &product);
  }
  return product;
}

Status EnqueueCopies(DenseProduct* product, std::byte* scratch, CUstream_st* stream) {
  for (const DenseProduct::Copy& copy : product->copies) {
    DeviceView& view = copy.of_a ? product->args.a : product->args.b;
    std::byte* target = scratch + copy.offset;
    TANDEM_RETURN_IF_ERROR(LaunchTransposeBytes(view.data, target, copy.rows, copy.columns, copy.in_pitch,
                                                copy.out_pitch, stream));
    view.data = target;
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
