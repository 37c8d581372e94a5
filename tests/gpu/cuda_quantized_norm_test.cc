// Norms whose rows are quantised, on one GPU: to the bit what the norm beside them makes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu/cuda_kernels_fixture.h"

namespace tandem {
namespace {

enum class Scales : uint8_t { kGiven, kOfRows, kOfBlocks };

class CudaQuantizedNormTest : public CudaKernelsTest {
 protected:
  NormArgs Make(DType type, int64_t rows, int64_t columns, int64_t shift, Scales scales) {
    used = 0;
    NormArgs args;
    args.sum = args.out = Random(type, {rows, columns}, {}, shift);
    args.weight = Random(type, {columns});
    args.epsilon = 1e-5f;
    args.has_residual = args.has_quantized = true;
    args.residual = args.residual_out = Random(type, {rows, columns});
    args.quantized = Random(DType::kF8E4M3, {rows, columns});
    args.has_static_scale = scales == Scales::kGiven;
    args.has_scales = !args.has_static_scale;
    if (args.has_static_scale) {
      args.static_scale = Random(DType::kF32, {1});
      StoreFromFloat(args.static_scale.data, DType::kF32, 0, 0.003f);  // saturates the greatest
    } else {
      const int64_t count = scales == Scales::kOfRows ? 1 : (columns + kScaleBlock - 1) / kScaleBlock;
      args.scales = Random(DType::kF32, {rows, count}, {1, (rows + 3) / 4 * 4});
    }
    return args;
  }

  // The first element or scale that differs from what the norm in `bytes` makes; empty: none.
  std::string Wrong(const NormArgs& args, const std::vector<std::byte>& bytes) const {
    const auto at = [&](const DeviceView& view, int64_t i) {
      return LoadAsFloat(bytes.data() + (view.data - mirror->data()), view.dtype, static_cast<size_t>(i));
    };
    const int64_t rows = args.out.extent[0], columns = args.out.extent[1];
    const int64_t blocks = args.has_scales ? args.scales.extent[1] : 1;
    const int64_t length = blocks == 1 ? columns : kScaleBlock;
    for (int64_t part = 0; part < rows * blocks; ++part) {
      const int64_t row = part / blocks, first = row * columns + part % blocks * length;
      const int64_t end = std::min(first + length, (row + 1) * columns);
      float most = 1.0f / 512;
      for (int64_t i = first; i < end; ++i) most = std::max(most, std::fabs(at(args.out, i)));
      const float scale = args.has_scales ? most / 448.0f : at(args.static_scale, 0);
      if (args.has_scales && at(args.scales, row + part % blocks * args.scales.stride[1]) != scale)
        return "scale " + std::to_string(part);
      for (int64_t i = first; i < end; ++i) {
        const auto have =
            static_cast<uint8_t>(bytes[static_cast<size_t>(args.quantized.data - mirror->data() + i)]);
        if (have != FloatToE4M3(at(args.out, i) / scale)) return "element " + std::to_string(i);
      }
    }
    return "";
  }
};

// Rows in registers of one to eight words a thread, few and many, and rows that do not fit them.
TEST_F(CudaQuantizedNormTest, EqualsTheQuantizationOfItsNorm) {
  struct Shape {
    int64_t rows, columns, shift;
  };
  for (DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const Shape& shape :
         {Shape{1, 8, 0}, Shape{5, 8192, 0}, Shape{3, 16384, 0}, Shape{2, 32768, 0}, Shape{400, 256, 0},
          Shape{300, 8192, 0}, Shape{2, 70000, 0}, Shape{7, 1000, 1}, Shape{9, 37, 0}, Shape{6, 2880, 0}}) {
      for (const Scales scales : {Scales::kGiven, Scales::kOfRows, Scales::kOfBlocks}) {
        const NormArgs args = Make(type, shape.rows, shape.columns, shape.shift, scales);
        Upload();
        NormArgs device = args;
        for (DeviceView* view :
             {&device.sum, &device.out, &device.weight, &device.residual, &device.residual_out,
              &device.quantized, &device.static_scale, &device.scales})
          *view = OnDevice(*view);
        ASSERT_TRUE(lane->Norm(device).ok());
        EXPECT_EQ(Wrong(args, Result()), "") << DTypeName(type) << " of " << shape.rows << " x "
                                             << shape.columns << ", " << static_cast<int>(scales);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
