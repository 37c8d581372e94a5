#include "kernels/cuda/matmul/block_scales.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/matmul/aligned_vectors.h"

namespace tandem::cuda {
namespace {

constexpr uint64_t kSquarePitch = 4;  // kSquares: factors along K, a multiple of this
constexpr size_t kSlotMultiple = 256;

template <typename Integer>
Integer RoundedUp(Integer value, Integer multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool IsAligned(const std::byte* address) {
  return reinterpret_cast<uintptr_t>(address) % kVectorAlignment == 0;
}

// Factors that are cut as A's rows are, so that a row's index finds its factors.
bool CutAlike(const DeviceView& scale, const DeviceView& a) {
  return scale.extent.size() == a.extent.size() &&
         std::equal(a.extent.begin(), a.extent.end() - 1, scale.extent.begin()) &&
         a.extent.size() - 1 <= static_cast<size_t>(kMaxDims);
}

// The leading dimensions lie one behind the other: row r's first factor is number r.
bool LeadingIsDense(const DeviceView& scale) {
  int64_t expected = 1;
  for (size_t d = scale.extent.size() - 1; d-- > 0;) {
    if (scale.extent[d] == 1) continue;
    if (scale.stride[d] != expected) return false;
    expected *= scale.extent[d];
  }
  return true;
}

void SetOutput(LtScale scales, int64_t lines, ArrangeScales* arranged) {
  arranged->lines = lines;
  arranged->padded = scales == LtScale::kSquares
                         ? RoundedUp(arranged->blocks, static_cast<int64_t>(kSquarePitch))
                         : arranged->blocks;
  arranged->line_pitch = scales == LtScale::kSquares ? arranged->padded : 1;
  arranged->block_pitch = scales == LtScale::kSquares ? 1 : lines;
}

// Scales of rows [first, first + lines).
ArrangeScales ArrangeA(const DeviceView& scale, int64_t first, int64_t lines) {
  ArrangeScales arranged = {};
  arranged.in = reinterpret_cast<const float*>(scale.data);
  arranged.dims = static_cast<int>(scale.extent.size()) - 1;
  for (int d = 0; d < arranged.dims; ++d) {
    arranged.extent[d] = scale.extent[static_cast<size_t>(d)];
    arranged.stride.of[d] = scale.stride[static_cast<size_t>(d)];
  }
  arranged.in_block_stride = scale.stride.back();
  arranged.first = first;
  arranged.shared = 1;
  arranged.blocks = scale.extent.back();
  SetOutput(LtScale::kBlocks, lines, &arranged);
  return arranged;
}

ArrangeScales ArrangeB(const MatmulArgs& args, LtScale scales) {
  const DeviceView& scale = args.scale_b;
  const int64_t columns = args.b.extent[1], factors = scale.extent[1];
  ArrangeScales arranged = {};
  arranged.in = reinterpret_cast<const float*>(scale.data);
  arranged.dims = 1;
  arranged.extent[0] = factors;
  arranged.stride.of[0] = scale.stride[1];
  arranged.in_block_stride = scale.stride[0];
  const bool spread = scales == LtScale::kBlocks && factors != columns;  // a block's factor for each column
  arranged.first = spread ? args.first_column : 0;
  arranged.shared = spread ? kScaleBlock : 1;
  arranged.blocks = scale.extent[0];
  SetOutput(scales, scales == LtScale::kSquares ? factors : columns, &arranged);
  return arranged;
}

// Whether B's factors lie as cuBLASLt reads them. The bytes that it reads behind the last block of a column
// must exist, and hold no NaN.
bool IsArrangedB(const DeviceView& scale, LtScale scales) {
  if (!IsAligned(scale.data)) return false;
  const int64_t blocks = scale.extent[0], lines = scale.extent[1];
  if (scales == LtScale::kBlocks) {
    return (lines == 1 || scale.stride[1] == 1) && (blocks == 1 || scale.stride[0] == lines);
  }
  return blocks % static_cast<int64_t>(kSquarePitch) == 0 && scale.stride[0] == 1 &&
         (lines == 1 || scale.stride[1] == blocks);
}

}  // namespace

size_t ScaleElements(LtScale scales, uint64_t lines, uint64_t k) {
  const auto block = static_cast<uint64_t>(kScaleBlock);
  const uint64_t blocks = (k + block - 1) / block;
  switch (scales) {
    case LtScale::kNone: return 0;
    case LtScale::kTensor: return 1;
    case LtScale::kVector: return lines;
    case LtScale::kBlocks: return lines * blocks;
    case LtScale::kSquares: return (lines + block - 1) / block * RoundedUp(blocks, kSquarePitch);
  }
  return 0;
}

Result<bool> PlaceBlockScales(const MatmulArgs& args, int64_t first, int64_t last, const LtMapping& mapping,
                              std::byte* scratch, CUstream stream, LtOperands* operands) {
  if (!CutAlike(args.scale_a, args.a)) return false;
  const LtProduct& product = mapping.product;
  const LtScale of_b = mapping.swapped ? product.x_scales : product.y_scales;
  const void*& a = mapping.swapped ? operands->y_scale : operands->x_scale;
  const void*& b = mapping.swapped ? operands->x_scale : operands->y_scale;
  const int64_t lines = last - first;
  std::vector<ArrangeScales> arranged;
  size_t used = 0;
  // Where the factors will lie; null when there is no room.
  const auto place = [&](ArrangeScales scales) -> const void* {
    const size_t bytes =
        RoundedUp(static_cast<size_t>(scales.lines * scales.padded) * sizeof(float), kSlotMultiple);
    if (bytes > kBlockScaleBytes - used) return nullptr;
    scales.out = reinterpret_cast<float*>(scratch + used);
    used += bytes;
    arranged.push_back(scales);
    return scales.out;
  };
  const std::byte* own_a = args.scale_a.data + first * static_cast<int64_t>(sizeof(float));
  const bool arranged_a = LeadingIsDense(args.scale_a) && IsAligned(own_a) &&
                          (args.scale_a.extent.back() == 1 || args.scale_a.stride.back() == lines);
  a = arranged_a ? own_a : place(ArrangeA(args.scale_a, first, lines));
  const bool same_b = of_b == LtScale::kSquares || args.scale_b.extent[1] == args.b.extent[1];
  b = same_b && IsArrangedB(args.scale_b, of_b) ? args.scale_b.data : place(ArrangeB(args, of_b));
  if (a == nullptr || b == nullptr) return false;
  TANDEM_RETURN_IF_ERROR(LaunchArrangeScales(arranged.data(), static_cast<int>(arranged.size()), stream));
  return true;
}

Status SetBlockFactors(const MatmulArgs& args, BlockFactors* factors) {
  if (!CutAlike(args.scale_a, args.a))
    return Unimplemented("scales by blocks that are cut otherwise than A's rows");
  factors->a = reinterpret_cast<const float*>(args.scale_a.data);
  factors->b = reinterpret_cast<const float*>(args.scale_b.data);
  for (size_t d = 0; d + 1 < args.a.extent.size(); ++d) factors->a_row_stride.of[d] = args.scale_a.stride[d];
  factors->a_block_stride = args.scale_a.stride.back();
  factors->b_block_stride = args.scale_b.stride[0];
  factors->b_stride = args.scale_b.stride[1];
  const bool each = args.scale_b.extent[1] == args.b.extent[1];
  factors->first_column = each ? 0 : args.first_column;
  factors->columns = each ? 1 : static_cast<int>(kScaleBlock);
  return Status::Ok();
}

}  // namespace tandem::cuda
