#include "kernels/host/matmul.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/host/convert.h"
#include "kernels/host/gemm.h"
#include "kernels/host/strided.h"
#include "kernels/host/word_wait.h"

namespace tandem::host {
namespace {

// Floats of B, and of A, that are converted at once: B's panel is reused by all rows of A and should stay in
// the cache.
constexpr int64_t kPanelFloats = int64_t{1} << 21;
constexpr int64_t kBlockFloats = int64_t{1} << 18;

// Where the elements of a view lie that are enumerated in row-major order over its first `dims` dimensions.
struct Offsets {
  std::vector<int64_t> at;     // in elements
  std::vector<int64_t> index;  // scratch
  bool uniform = true;         // at[i] == i * stride
  int64_t stride = 0;
};

void FillOffsets(const DeviceView& view, size_t dims, Offsets* filled) {
  Offsets& offsets = *filled;
  offsets.at.clear();
  offsets.uniform = true;
  offsets.stride = 0;
  int64_t count = 1;
  for (size_t d = 0; d < dims; ++d) count *= view.extent[d];
  offsets.at.reserve(static_cast<size_t>(count));
  std::vector<int64_t>& index = offsets.index;
  index.assign(dims, 0);
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    offsets.at.push_back(offset);
    for (size_t d = dims; d-- > 0;) {
      offset += view.stride[d];
      if (++index[d] < view.extent[d]) break;
      offset -= view.stride[d] * view.extent[d];
      index[d] = 0;
    }
  }
  if (count > 1) offsets.stride = offsets.at[1] - offsets.at[0];
  for (int64_t i = 0; i < count && offsets.uniform; ++i) {
    offsets.uniform = offsets.at[static_cast<size_t>(i)] == i * offsets.stride;
  }
}

const std::byte* At(const DeviceView& view, int64_t element) {
  return view.data + element * static_cast<int64_t>(DTypeBytes(view.dtype));
}

// The factors of a scale tensor for `count` rows or columns: one for all, or one each.
void LoadFactors(const DeviceView& view, int64_t count, Offsets* scratch, std::vector<float>* loaded) {
  std::vector<float>& factors = *loaded;
  factors.resize(static_cast<size_t>(count));
  Offsets& offsets = *scratch;
  FillOffsets(view, view.extent.size(), &offsets);
  for (int64_t i = 0; i < count; ++i) {
    int64_t element = offsets.at.size() == 1 ? offsets.at[0] : offsets.at[static_cast<size_t>(i)];
    ConvertToFloat(At(view, element), view.dtype, 1, 1, &factors[static_cast<size_t>(i)]);
  }
}

// The buffers of a product. Each queue's thread keeps its own from product to product, which then allocate
// nothing; at most about a panel, a block of A and one of sums.
struct Workbench {
  Offsets rows_a, rows_c, factors;
  std::vector<float> scale_a, scale_b, bias, result_scale;
  std::vector<float> panel, block, sums, old, part;
};

int64_t BlocksOf(int64_t extent) { return (extent + kScaleBlock - 1) / kScaleBlock; }

// The product's operands, resolved once a run.
class Product {
 public:
  Product(const MatmulArgs& args, const TaskContext& context, Workbench* bench)
      : args_(args),
        context_(context),
        gemm_(args.fixed_order ? &OrderedGemm : &Gemm),
        rows_a_(bench->rows_a),
        rows_c_(bench->rows_c),
        scale_a_(bench->scale_a),
        scale_b_(bench->scale_b),
        bias_(bench->bias),
        panel_(bench->panel),
        block_(bench->block),
        sums_(bench->sums),
        old_(bench->old),
        part_(bench->part) {
    FillOffsets(args.a, args.a.extent.size() - 1, &rows_a_);
    FillOffsets(args.c, args.c.extent.size() - 1, &rows_c_);
    m_ = static_cast<int64_t>(rows_a_.at.size());
    k_ = args.a.extent.back();
    n_ = args.c.extent.back();
    a_column_stride_ = args.a.stride.back();
    c_column_stride_ = args.c.stride.back();
    a_direct_ = args.a.dtype == DType::kF32 && rows_a_.uniform &&
                (a_column_stride_ == 1 || rows_a_.stride == 1) &&
                IsWide(rows_a_.stride, a_column_stride_, m_, k_);
    b_direct_ = args.b.dtype == DType::kF32 && (args.b.stride[0] == 1 || args.b.stride[1] == 1) &&
                IsWide(args.b.stride[0], args.b.stride[1], k_, n_);
    bool plain = !args.has_scale_a && !args.has_scale_b && !args.has_bias && !args.has_result_scale;
    c_direct_ = plain && args.c.dtype == DType::kF32 && rows_c_.uniform && c_column_stride_ == 1 &&
                (m_ <= 1 || rows_c_.stride >= n_);
    Offsets* factors = &bench->factors;
    const int64_t blocks = args.block_scales ? BlocksOf(k_) : 1;
    if (args.has_scale_a) LoadFactors(args.scale_a, m_ * blocks, factors, &scale_a_);
    if (args.has_scale_b)
      LoadFactors(args.scale_b, args.block_scales ? blocks * args.scale_b.extent[1] : n_, factors, &scale_b_);
    if (args.has_bias) LoadFactors(args.bias, n_, factors, &bias_);
    if (args.has_result_scale) {
      LoadFactors(args.result_scale, 1, factors, &bench->result_scale);
      result_scale_ = bench->result_scale[0];
    }
  }

  void Run() {
    if (m_ == 0 || n_ == 0) return;
    int64_t panel = b_direct_ ? n_ : std::clamp<int64_t>(kPanelFloats / std::max<int64_t>(k_, 1), 16, n_);
    panel = std::min(panel, n_);
    const int chunks = args_.chunks();
    int64_t chunk_rows = (m_ + chunks - 1) / chunks;
    for (int64_t column = 0; column < n_; column += panel) {
      int64_t columns = std::min(panel, n_ - column);
      FloatMatrix b = LoadPanel(column, columns);
      for (int i = 0; i < chunks; ++i) {
        int chunk = (args_.chunk_pivot + i) % chunks;
        int64_t first = std::min(m_, chunk * chunk_rows);
        int64_t last = std::min(m_, first + chunk_rows);
        if (!AwaitChunk(chunk)) return;
        MultiplyRows(first, last, b, column, columns);
      }
    }
  }

 private:
  // True when Eigen may take the strides as they are: a broadcast or overlapping matrix is converted instead.
  static bool IsWide(int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns) {
    if (column_stride == 1) return rows <= 1 || row_stride >= columns;
    return columns <= 1 || column_stride >= rows;
  }

  bool AwaitChunk(int chunk) const {
    const uint32_t* const words = args_.chunk_words();
    if (words == nullptr) return true;
    Backoff backoff;
    while (__atomic_load_n(words + chunk, __ATOMIC_ACQUIRE) == 0) {
      if (context_.abandoned->load(std::memory_order_relaxed)) return false;
      if (args_.abort_word != nullptr && args_.abort_word->load(std::memory_order_relaxed) != 0) return false;
      backoff.Pause();
    }
    return true;
  }

  // Columns [column, column + columns) of B as floats: in place, or converted in the order in which they lie.
  FloatMatrix LoadPanel(int64_t column, int64_t columns) {
    int64_t row_stride = args_.b.stride[0];
    int64_t column_stride = args_.b.stride[1];
    const std::byte* data = At(args_.b, column * column_stride);
    if (b_direct_) {
      auto* floats = const_cast<float*>(reinterpret_cast<const float*>(data));
      return {floats, row_stride, column_stride};
    }
    panel_.resize(static_cast<size_t>(k_ * columns));
    if (row_stride == 1 && column_stride != 1) {
      for (int64_t j = 0; j < columns; ++j) {
        ConvertToFloat(At(args_.b, (column + j) * column_stride), args_.b.dtype, 1, k_,
                       panel_.data() + j * k_);
      }
      return {panel_.data(), 1, k_};
    }
    for (int64_t i = 0; i < k_; ++i) {
      ConvertToFloat(At(args_.b, i * row_stride + column * column_stride), args_.b.dtype, column_stride,
                     columns, panel_.data() + i * columns);
    }
    return {panel_.data(), columns, 1};
  }

  // Rows [first, last) of A as floats.
  FloatMatrix LoadRows(int64_t first, int64_t last) {
    if (a_direct_) {
      const std::byte* data = At(args_.a, first * rows_a_.stride);
      return {const_cast<float*>(reinterpret_cast<const float*>(data)), rows_a_.stride, a_column_stride_};
    }
    int64_t rows = last - first;
    block_.resize(static_cast<size_t>(rows * k_));
    if (rows_a_.uniform && rows_a_.stride == 1 && a_column_stride_ != 1) {
      for (int64_t j = 0; j < k_; ++j) {
        ConvertToFloat(At(args_.a, first + j * a_column_stride_), args_.a.dtype, 1, rows,
                       block_.data() + j * rows);
      }
      return {block_.data(), 1, rows};
    }
    for (int64_t i = 0; i < rows; ++i) {
      ConvertToFloat(At(args_.a, rows_a_.at[static_cast<size_t>(first + i)]), args_.a.dtype, a_column_stride_,
                     k_, block_.data() + i * k_);
    }
    return {block_.data(), k_, 1};
  }

  void MultiplyRows(int64_t first, int64_t last, const FloatMatrix& b, int64_t column, int64_t columns) {
    int64_t per_row = std::max<int64_t>(a_direct_ ? columns : std::max(k_, columns), 1);
    int64_t step = a_direct_ && c_direct_ ? std::max<int64_t>(last - first, 1)
                                          : std::max<int64_t>(kBlockFloats / per_row, 8);
    for (int64_t row = first; row < last; row += step) {
      int64_t end = std::min(last, row + step);
      FloatMatrix a = LoadRows(row, end);
      if (c_direct_) {
        auto* out = reinterpret_cast<float*>(args_.c.data) + row * rows_c_.stride + column;
        gemm_(a, b, {out, rows_c_.stride, 1}, end - row, columns, k_, args_.alpha, args_.accumulate);
        continue;
      }
      sums_.resize(static_cast<size_t>((end - row) * columns));
      if (args_.block_scales) {
        MultiplyBlocks(a, b, row, end, column, columns);
      } else {
        gemm_(a, b, {sums_.data(), columns, 1}, end - row, columns, k_, args_.alpha, false);
      }
      for (int64_t i = row; i < end; ++i) Finish(i, column, columns, sums_.data() + (i - row) * columns);
    }
  }

  // The sums of rows [first, last) and their columns, each block of K with its factors.
  void MultiplyBlocks(const FloatMatrix& a, const FloatMatrix& b, int64_t first, int64_t last, int64_t column,
                      int64_t columns) {
    std::fill(sums_.begin(), sums_.end(), 0.0f);
    part_.resize(sums_.size());
    const int64_t blocks = BlocksOf(k_), factors = args_.scale_b.extent[1];
    const int64_t shared = factors == n_ ? 1 : kScaleBlock;  // columns of a factor
    const int64_t begin = column + (shared == 1 ? 0 : args_.first_column);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t k = block * kScaleBlock;
      gemm_({a.data + k * a.column_stride, a.row_stride, a.column_stride},
            {b.data + k * b.row_stride, b.row_stride, b.column_stride}, {part_.data(), columns, 1},
            last - first, columns, std::min(kScaleBlock, k_ - k), args_.alpha, false);
      const float* of_b = scale_b_.data() + block * factors;
      for (int64_t i = first; i < last; ++i) {
        const float of_a = scale_a_[static_cast<size_t>(i * blocks + block)];
        float* sums = sums_.data() + (i - first) * columns;
        const float* part = part_.data() + (i - first) * columns;
        for (int64_t j = 0; j < columns; ++j) sums[j] += part[j] * (of_a * of_b[(begin + j) / shared]);
      }
    }
  }

  // Scales, old C, bias, result scale and the rounding of one row.
  void Finish(int64_t row, int64_t column, int64_t columns, float* sums) {
    if (args_.has_scale_a && !args_.block_scales) {
      float scale = scale_a_[static_cast<size_t>(row)];
      for (int64_t j = 0; j < columns; ++j) sums[j] *= scale;
    }
    if (args_.has_scale_b && !args_.block_scales) {
      for (int64_t j = 0; j < columns; ++j) sums[j] *= scale_b_[static_cast<size_t>(column + j)];
    }
    std::byte* out =
        const_cast<std::byte*>(At(args_.c, rows_c_.at[static_cast<size_t>(row)] + column * c_column_stride_));
    if (args_.accumulate) {
      old_.resize(static_cast<size_t>(columns));
      ConvertToFloat(out, args_.c.dtype, c_column_stride_, columns, old_.data());
      for (int64_t j = 0; j < columns; ++j) sums[j] += old_[static_cast<size_t>(j)];
    }
    if (args_.has_bias) {
      for (int64_t j = 0; j < columns; ++j) sums[j] += bias_[static_cast<size_t>(column + j)];
    }
    if (args_.has_result_scale) {
      for (int64_t j = 0; j < columns; ++j) sums[j] *= result_scale_;
    }
    ConvertFromFloat(sums, columns, out, args_.c.dtype, c_column_stride_);
  }

  const MatmulArgs& args_;
  const TaskContext& context_;
  decltype(&Gemm) gemm_;
  Offsets &rows_a_, &rows_c_;
  int64_t m_ = 0, n_ = 0, k_ = 0;
  int64_t a_column_stride_ = 1, c_column_stride_ = 1;
  bool a_direct_ = false, b_direct_ = false, c_direct_ = false;
  std::vector<float>&scale_a_, &scale_b_, &bias_;
  float result_scale_ = 1.0f;
  std::vector<float>&panel_, &block_, &sums_, &old_, &part_;
};

Status CheckFactors(const DeviceView& view, const char* name, int64_t many) {
  TANDEM_RETURN_IF_ERROR(CheckView(view, name));
  int64_t count = plan::Elements(view);
  if (!IsFloating(view.dtype) || (count != 1 && count != many)) {
    return InvalidArgument(std::string(name) + " has " + std::to_string(count) + " elements; it needs 1 or " +
                           std::to_string(many));
  }
  return Status::Ok();
}

Status CheckBlockFactors(const MatmulArgs& args, int64_t rows, int64_t columns) {
  if (!args.has_scale_a || !args.has_scale_b) return InvalidArgument("scales by blocks of one operand alone");
  TANDEM_RETURN_IF_ERROR(CheckView(args.scale_a, "scale_a"));
  TANDEM_RETURN_IF_ERROR(CheckView(args.scale_b, "scale_b"));
  if (args.scale_a.dtype != DType::kF32 || args.scale_b.dtype != DType::kF32)
    return InvalidArgument("scales are f32");
  const int64_t blocks = BlocksOf(args.a.extent.back());
  if (args.first_column < 0 || args.first_column >= kScaleBlock)
    return InvalidArgument("no column of a block");
  if (args.scale_a.extent.empty() || args.scale_a.extent.back() != blocks ||
      plan::Elements(args.scale_a) != rows * blocks) {
    return InvalidArgument("scale_a has " + std::to_string(plan::Elements(args.scale_a)) + " elements; " +
                           std::to_string(rows) + " rows and " + std::to_string(blocks) +
                           " blocks need one each");
  }
  const std::vector<int64_t>& b = args.scale_b.extent;
  if (b.size() != 2 || b[0] != blocks || (b[1] != columns && b[1] != BlocksOf(args.first_column + columns))) {
    return InvalidArgument("scale_b has not one element for each block of K and column, or block of columns");
  }
  return Status::Ok();
}

}  // namespace

Status CheckMatmul(const MatmulArgs& args) {
  TANDEM_RETURN_IF_ERROR(CheckView(args.a, "A"));
  TANDEM_RETURN_IF_ERROR(CheckView(args.b, "B"));
  TANDEM_RETURN_IF_ERROR(CheckView(args.c, "C"));
  if (args.a.extent.empty() || args.b.extent.size() != 2 || args.c.extent.size() != args.a.extent.size()) {
    return InvalidArgument("a product needs A [..., M, K], B [K, N] and C [..., M, N]");
  }
  if (!IsFloating(args.a.dtype) || !IsFloating(args.b.dtype) || !IsFloating(args.c.dtype)) {
    return InvalidArgument("a product of integers");
  }
  bool rows_agree = std::equal(args.a.extent.begin(), args.a.extent.end() - 1, args.c.extent.begin());
  if (!rows_agree || args.a.extent.back() != args.b.extent[0] || args.b.extent[1] != args.c.extent.back()) {
    return InvalidArgument("the extents of A, B and C do not fit");
  }
  int64_t n = args.c.extent.back();
  int64_t m = n == 0 ? 0 : plan::Elements(args.c) / n;
  if (m == 0) return Status::Ok();
  if (args.block_scales) {
    TANDEM_RETURN_IF_ERROR(CheckBlockFactors(args, m, n));
  } else {
    if (args.has_scale_a) TANDEM_RETURN_IF_ERROR(CheckFactors(args.scale_a, "scale_a", m));
    if (args.has_scale_b) TANDEM_RETURN_IF_ERROR(CheckFactors(args.scale_b, "scale_b", n));
  }
  if (args.has_bias) TANDEM_RETURN_IF_ERROR(CheckFactors(args.bias, "bias", n));
  if (args.has_result_scale) TANDEM_RETURN_IF_ERROR(CheckFactors(args.result_scale, "result_scale", 1));
  if (args.chunks() < 1 || args.chunk_pivot < 0 || args.chunk_pivot >= args.chunks()) {
    return InvalidArgument("chunk pivot " + std::to_string(args.chunk_pivot) + " of " +
                           std::to_string(args.chunks()) + " chunks");
  }
  return Status::Ok();
}

void RunMatmul(const MatmulArgs& args, const TaskContext& context) {
  thread_local Workbench bench;
  Product(args, context, &bench).Run();
}

}  // namespace tandem::host
