// MapToLt: row-major views in cuBLASLt's column-major words.
#include "kernels/cuda/matmul/matmul_plan.h"

namespace tandem::cuda {
namespace {

constexpr int64_t kLineMultiple = 4;  // of rows and columns, where scales are by blocks

// A matrix of rows × columns at strides; `row_stride` 1 is column-major.
struct Matrix {
  int64_t rows, columns, row_stride, column_stride;
  Matrix Transposed() const { return {columns, rows, column_stride, row_stride}; }
};

// The leading dimensions folded into rows, if those are evenly spaced.
std::optional<Matrix> Fold(const DeviceView& view) {
  size_t last = view.extent.size() - 1;
  Matrix matrix{1, view.extent[last], 0, view.stride[last]};
  for (size_t d = last; d-- > 0;) {
    if (view.extent[d] == 1) continue;
    if (matrix.rows == 1) {
      matrix.row_stride = view.stride[d];
    } else if (view.stride[d] != matrix.row_stride * matrix.rows) {
      return std::nullopt;
    }
    matrix.rows *= view.extent[d];
  }
  return matrix;
}

// `matrix` as an operand: stored column-major, or row-major and thus transposed.
std::optional<LtMatrix> AsOperand(const Matrix& matrix, cudaDataType_t type, bool prefer_transposed) {
  LtMatrix plain{type, static_cast<uint64_t>(matrix.rows), static_cast<uint64_t>(matrix.columns),
                 matrix.columns == 1 ? matrix.rows : matrix.column_stride, false};
  bool is_plain = (matrix.row_stride == 1 || matrix.rows == 1) && plain.leading >= matrix.rows;
  LtMatrix turned{type, static_cast<uint64_t>(matrix.columns), static_cast<uint64_t>(matrix.rows),
                  matrix.rows == 1 ? matrix.columns : matrix.row_stride, true};
  bool is_turned = (matrix.column_stride == 1 || matrix.columns == 1) && turned.leading >= matrix.columns;
  if (is_turned && (prefer_transposed || !is_plain)) return turned;
  if (is_plain) return plain;
  return std::nullopt;
}

bool IsVector(const DeviceView& view) { return plan::Elements(view) != 1; }

}  // namespace

std::optional<cudaDataType_t> LtType(DType type) {
  switch (type) {
    case DType::kF32: return CUDA_R_32F;
    case DType::kF16: return CUDA_R_16F;
    case DType::kBf16: return CUDA_R_16BF;
    case DType::kF8E4M3: return CUDA_R_8F_E4M3;
    case DType::kF8E5M2: return CUDA_R_8F_E5M2;
    default: return std::nullopt;
  }
}

std::optional<LtMapping> MapToLt(const MatmulArgs& args, int64_t rows, uint32_t alignment,
                                 std::string* reason) {
  auto refuse = [&](const char* why) {
    *reason = why;
    return std::nullopt;
  };
  std::optional<Matrix> a = Fold(args.a), c = Fold(args.c);
  if (!a || !c) return refuse("the rows of A or C are not evenly spaced");
  a->rows = c->rows = rows;
  Matrix b{args.b.extent[0], args.b.extent[1], args.b.stride[0], args.b.stride[1]};
  if (rows == 0 || b.rows == 0 || b.columns == 0) return refuse("an empty product");
  bool float8 = IsFloat8(args.a.dtype) && IsFloat8(args.b.dtype);
  if (!float8 && args.a.dtype != args.b.dtype) return refuse("A and B differ in type");
  if (args.c.dtype != DType::kF32 && (float8 ? IsFloat8(args.c.dtype) : args.c.dtype != args.a.dtype)) {
    return refuse("C's type does not go with A's");
  }
  if (args.has_result_scale) return refuse("a result scale after the bias");
  if (float8 != (args.has_scale_a || args.has_scale_b) && !float8)
    return refuse("scales on operands that are not fp8");
  LtMapping mapping;
  LtProduct& product = mapping.product;
  product.alignment = alignment;
  if (args.has_scale_a != args.has_scale_b) return refuse("one operand's scale without the other's");
  LtScale of_a = LtScale::kNone, of_b = LtScale::kNone;
  if (args.block_scales) {
    if (!float8) return refuse("scales by blocks on operands that are not fp8");
    if (rows % kLineMultiple != 0 || b.columns % kLineMultiple != 0) {
      return refuse("scales by blocks, and rows or columns in no multiple of 4");
    }
    of_a = LtScale::kBlocks;
    // A slice of columns that begins within a block gets a factor for each column.
    const bool whole_blocks = args.scale_b.extent[1] != b.columns && args.first_column == 0;
    of_b = whole_blocks ? LtScale::kSquares : LtScale::kBlocks;
  } else if (float8 && args.has_scale_a) {
    bool rowwise = IsVector(args.scale_a);
    if (rowwise != IsVector(args.scale_b)) return refuse("one scale by row, the other for the tensor");
    if (args.scale_a.dtype != DType::kF32 || args.scale_b.dtype != DType::kF32 ||
        !plan::IsContiguous(args.scale_a) || !plan::IsContiguous(args.scale_b)) {
      return refuse("scales that are not dense f32");
    }
    of_a = of_b = rowwise ? LtScale::kVector : LtScale::kTensor;
  }
  // C row-major is its transpose column-major: D = Cᵀ = Bᵀ Aᵀ.
  bool row_major = c->column_stride == 1 && (c->rows == 1 || c->row_stride >= c->columns);
  bool column_major = c->row_stride == 1 && (c->columns == 1 || c->column_stride >= c->rows);
  if (!row_major && !column_major && c->columns != 1)
    return refuse("C's strides are neither row- nor column-major");
  mapping.swapped = row_major || !column_major;
  if (c->columns == 1 && !row_major && !column_major) return refuse("C is one strided column");
  Matrix x = mapping.swapped ? b.Transposed() : *a;
  Matrix y = mapping.swapped ? a->Transposed() : b;
  Matrix d = mapping.swapped ? c->Transposed() : *c;
  if (args.has_bias) {
    if (!mapping.swapped) return refuse("a bias along the columns of a column-major C");
    if (args.bias.dtype != args.c.dtype || !plan::IsContiguous(args.bias) || !IsVector(args.bias)) {
      return refuse("a bias that is not dense, or of another type than C");
    }
    product.has_bias = true;
    product.bias_type = *LtType(args.bias.dtype);
  }
  auto x_type = *LtType(mapping.swapped ? args.b.dtype : args.a.dtype);
  auto y_type = *LtType(mapping.swapped ? args.a.dtype : args.b.dtype);
  // fp8 wants both operands dense along K: X transposed, Y not.
  std::optional<LtMatrix> x_operand = AsOperand(x, x_type, float8), y_operand = AsOperand(y, y_type, false);
  if (!x_operand || !y_operand) return refuse("strides of A or B are not those of a matrix");
  if (float8 && (!x_operand->transposed || y_operand->transposed))
    return refuse("fp8 operands not dense along K");
  product.x = *x_operand;
  product.y = *y_operand;
  product.d = {*LtType(args.c.dtype), static_cast<uint64_t>(d.rows), static_cast<uint64_t>(d.columns),
               d.columns == 1 ? d.rows : d.column_stride, false};
  product.x_scales = mapping.swapped ? of_b : of_a;
  product.y_scales = mapping.swapped ? of_a : of_b;
  // With scales by blocks every block's sum leaves the tensor cores.
  product.fast_accumulation = float8 && args.fast_accumulation && !args.block_scales;
  return mapping;
}

}  // namespace tandem::cuda
