// fp8 products with scales by blocks of 128 on one GPU, beside the host backend's: by cuBLASLt where it can,
// from factors of any layout, and by the plain kernel.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/lane/cuda_lane.h"
#include "kernels/cuda/matmul/matmul_plan.h"
#include "tests/gpu/cuda_kernels_fixture.h"

namespace tandem {
namespace {

class CudaBlockScalesTest : public CudaKernelsTest {
 protected:
  struct Layout {
    bool a_by_columns = true, b_by_columns = true;
    bool each = false;  // B has a factor for each column
    int first_column = 0;
    int64_t b_pitch = 0;  // from a column of B's factors to the next; 0: as many as there are
  };

  MatmulArgs Product(int64_t rows, int64_t n, int64_t k, DType out, const Layout& layout) {
    used = 0;
    const int64_t blocks = (k + kScaleBlock - 1) / kScaleBlock;
    const int64_t factors = layout.each ? n : (layout.first_column + n + kScaleBlock - 1) / kScaleBlock;
    MatmulArgs args;
    args.a = Random(DType::kF8E4M3, {rows, k});
    args.b = Random(DType::kF8E4M3, {k, n}, {1, k});
    args.c = Random(out, {rows, n});
    args.has_scale_a = args.has_scale_b = args.block_scales = true;
    args.first_column = layout.first_column;
    args.scale_a =
        Random(DType::kF32, {rows, blocks},
               layout.a_by_columns ? std::vector<int64_t>{1, rows} : std::vector<int64_t>{blocks, 1});
    const int64_t pitch = layout.b_pitch > 0 ? layout.b_pitch : blocks;
    args.scale_b =
        Random(DType::kF32, {blocks, factors},
               layout.b_by_columns ? std::vector<int64_t>{1, pitch} : std::vector<int64_t>{factors, 1});
    return args;
  }
};

// Says whether this machine's cuBLASLt has such products: what the plain kernel does instead is many times
// slower.
TEST_F(CudaBlockScalesTest, FactorsOfAnyLayoutGoToCublasLt) {
  auto device = *cuda::CudaDevice::Create(driver, 0);
  CountingLt lt(*cuda::LoadCublasLt());
  auto own = *cuda::CudaLane::Create(device, std::make_shared<cuda::MatmulChooser>(device, &lt, 8), 0);
  Lane* const usual = std::exchange(lane, static_cast<Lane*>(own.get()));
  struct Size {
    int64_t rows, n, k;
  };
  for (const Size& size : {Size{256, 384, 512}, Size{128, 256, 1024}, Size{100, 144, 384}, Size{64, 128, 128},
                           Size{4, 512, 640}}) {
    for (DType out : {DType::kBf16, DType::kF32, DType::kF16}) {
      for (const Layout& layout :
           {Layout{}, Layout{.a_by_columns = false}, Layout{.b_by_columns = false}, Layout{.each = true},
            Layout{.b_by_columns = false, .each = true}, Layout{.first_column = 70},
            Layout{.a_by_columns = false, .b_pitch = 16}}) {
        lt.ran = lt.refused = 0;
        CheckMatmul(Product(size.rows, size.n, size.k, out, layout), 4e-3, "blocks");
        EXPECT_EQ(lt.ran, 1) << size.rows << "x" << size.n << "x" << size.k << " " << DTypeName(out)
                             << (layout.each ? " each" : "") << (layout.a_by_columns ? "" : " a by rows")
                             << (layout.b_by_columns ? "" : " b by rows") << " first column "
                             << layout.first_column;
        EXPECT_EQ(lt.refused, 0);
      }
    }
  }
  lane = usual;
}

// K that ends within a block, rows and columns in no multiple of 4, what is added to C: right by whichever
// kernel.
TEST_F(CudaBlockScalesTest, OddSizesAreRight) {
  constexpr double kTolerance = 4e-3;  // bf16's; tensor cores keep 14 bits of a block's sum
  struct Size {
    int64_t rows, n, k;
  };
  for (const Size& size :
       {Size{64, 96, 144}, Size{33, 48, 272}, Size{5, 7, 129}, Size{1, 256, 512}, Size{130, 70, 5}}) {
    for (DType out : {DType::kBf16, DType::kF32}) {
      for (const Layout& layout : {Layout{}, Layout{.a_by_columns = false, .b_by_columns = false},
                                   Layout{.each = true}, Layout{.first_column = 127}}) {
        MatmulArgs args = Product(size.rows, size.n, size.k, out, layout);
        CheckMatmul(args, kTolerance, "odd");
        args.accumulate = out == DType::kF32;
        args.alpha = 0.5f;
        args.has_bias = true;
        args.bias = Random(out, {size.n});
        CheckMatmul(args, kTolerance, "bias");
      }
    }
  }
}

// As an all-gather leaves factors: by columns within each shard, the shards one behind the other.
TEST_F(CudaBlockScalesTest, FactorsOfGatheredShardsAreArranged) {
  const int64_t world = 4, rows = 32, n = 256, k = 512, blocks = k / kScaleBlock;
  MatmulArgs args = Product(world * rows, n, k, DType::kBf16, {});
  const MatmulArgs folded = args;
  args.a.extent = {world, rows, k};
  args.a.stride = {rows * k, k, 1};
  args.c.extent = {world, rows, n};
  args.c.stride = {rows * n, n, 1};
  args.scale_a = Random(DType::kF32, {world, rows, blocks}, {rows * blocks, 1, rows});
  Upload();
  MatmulArgs device = args;
  for (DeviceView* view : {&device.a, &device.b, &device.c, &device.scale_a, &device.scale_b})
    *view = OnDevice(*view);
  ASSERT_TRUE(backend->PrepareMatmul(device).ok());
  ASSERT_TRUE(lane->Matmul(device).ok());
  const std::vector<std::byte> result = Result();
  host::RunMatmul(args, kContext);
  const std::byte* c = result.data() + (args.c.data - mirror->data());
  double error = 0, norm = 0;
  for (size_t i = 0; i < static_cast<size_t>(world * rows * n); ++i) {
    const double expected = LoadAsFloat(folded.c.data, DType::kBf16, i),
                 got = LoadAsFloat(c, DType::kBf16, i);
    error += (got - expected) * (got - expected);
    norm += expected * expected;
  }
  EXPECT_LT(std::sqrt(error / norm), 4e-3);
}

}  // namespace
}  // namespace tandem
