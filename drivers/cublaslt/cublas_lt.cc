#include "drivers/cublaslt/cublas_lt.h"

#include <cstddef>
#include <string>
#include <utility>

#include "drivers/dynamic_library.h"

namespace tandem::cuda {
namespace {

// clang-format off
#define TANDEM_LT_FUNCTIONS(X) \
  X(cublasLtCreate) \
  X(cublasLtGetStatusString) \
  X(cublasLtGetVersion) \
  X(cublasLtMatmul) \
  X(cublasLtMatmulDescCreate) \
  X(cublasLtMatmulDescDestroy) \
  X(cublasLtMatmulDescSetAttribute) \
  X(cublasLtMatrixLayoutCreate) \
  X(cublasLtMatrixLayoutDestroy) \
  X(cublasLtMatmulPreferenceCreate) \
  X(cublasLtMatmulPreferenceDestroy) \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)          \
  X(cublasLtMatmulAlgoCheck)
// clang-format on

struct CublasFunctions {
#define TANDEM_MEMBER(name) decltype(&::name) name##_ = nullptr;
  TANDEM_LT_FUNCTIONS(TANDEM_MEMBER)
#undef TANDEM_MEMBER

  Status Load(const DynamicLibrary& library) {
#define TANDEM_FIND(name) TANDEM_RETURN_IF_ERROR(library.Find(#name, &name##_));
    TANDEM_LT_FUNCTIONS(TANDEM_FIND)
#undef TANDEM_FIND
    return Status::Ok();
  }
  Status Check(const char* call, cublasStatus_t status) const {
    return CublasStatus(call, status, cublasLtGetStatusString_(status));
  }
};

// The descriptors of one call; made and destroyed on the host in well under a microsecond each.
class Descriptors {
 public:
  explicit Descriptors(const CublasFunctions& functions) : f_(functions) {}
  ~Descriptors() {
    if (operation != nullptr) f_.cublasLtMatmulDescDestroy_(operation);
    for (cublasLtMatrixLayout_t layout : {x, y, d}) {
      if (layout != nullptr) f_.cublasLtMatrixLayoutDestroy_(layout);
    }
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  Status Make(const LtProduct& product, const LtOperands& operands) {
    TANDEM_RETURN_IF_ERROR(f_.Check("cublasLtMatmulDescCreate",
                                    f_.cublasLtMatmulDescCreate_(&operation, product.compute, CUDA_R_32F)));
    cublasOperation_t x_op = product.x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t y_op = product.y.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    TANDEM_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, x_op));
    TANDEM_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSB, y_op));
    if (product.fast_accumulation) {
      TANDEM_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(1)));
    }
    TANDEM_RETURN_IF_ERROR(SetScales(product.x_scales, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                                     CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.x_scale));
    TANDEM_RETURN_IF_ERROR(SetScales(product.y_scales, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
                                     CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.y_scale));
    if (product.has_bias) {
      TANDEM_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
      TANDEM_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, product.bias_type));
      TANDEM_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias));
    }
    TANDEM_RETURN_IF_ERROR(MakeLayout(product.x, &x));
    TANDEM_RETURN_IF_ERROR(MakeLayout(product.y, &y));
    return MakeLayout(product.d, &d);
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t x = nullptr, y = nullptr, d = nullptr;

 private:
  template <typename Value>
  Status Set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    return f_.Check("cublasLtMatmulDescSetAttribute",
                    f_.cublasLtMatmulDescSetAttribute_(operation, attribute, &value, sizeof(value)));
  }
  Status SetScales(LtScale scales, cublasLtMatmulDescAttributes_t mode,
                   cublasLtMatmulDescAttributes_t pointer, const void* factors) {
    switch (scales) {
      case LtScale::kNone: return Status::Ok();
      case LtScale::kTensor: break;  // cuBLASLt's default
      case LtScale::kVector:
        TANDEM_RETURN_IF_ERROR(Set(mode, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F));
        break;
      case LtScale::kBlocks:
        TANDEM_RETURN_IF_ERROR(Set(mode, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
        break;
      case LtScale::kSquares:
        TANDEM_RETURN_IF_ERROR(Set(mode, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F));
        break;
    }
    return Set(pointer, factors);
  }
  Status MakeLayout(const LtMatrix& matrix, cublasLtMatrixLayout_t* layout) {
    return f_.Check(
        "cublasLtMatrixLayoutCreate",
        f_.cublasLtMatrixLayoutCreate_(layout, matrix.type, matrix.rows, matrix.columns, matrix.leading));
  }

  const CublasFunctions& f_;
};

constexpr size_t kVectorAlignment = 16;

class LoadedCublasLt : public CublasLt {
 public:
  LoadedCublasLt(const CublasFunctions& functions, cublasLtHandle_t handle)
      : f_(functions), handle_(handle) {}

  uint64_t Version() const override { return f_.cublasLtGetVersion_(); }

  Result<std::vector<cublasLtMatmulAlgo_t>> Candidates(const LtProduct& product, size_t workspace_bytes,
                                                       int most) override {
    Descriptors descriptors(f_);
    TANDEM_RETURN_IF_ERROR(descriptors.Make(product, Placeholders(product)));
    cublasLtMatmulPreference_t preference = nullptr;
    TANDEM_RETURN_IF_ERROR(
        f_.Check("cublasLtMatmulPreferenceCreate", f_.cublasLtMatmulPreferenceCreate_(&preference)));
    Status status = Prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    if (status.ok())
      status = Prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, ReductionSchemes(product));
    for (auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      if (status.ok()) status = Prefer(preference, attribute, product.alignment);
    }
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int found = 0;
    cublasStatus_t heuristic = CUBLAS_STATUS_SUCCESS;
    if (status.ok()) {
      heuristic = f_.cublasLtMatmulAlgoGetHeuristic_(handle_, descriptors.operation, descriptors.x,
                                                     descriptors.y, descriptors.d, descriptors.d, preference,
                                                     most, results.data(), &found);
    }
    f_.cublasLtMatmulPreferenceDestroy_(preference);
    TANDEM_RETURN_IF_ERROR(status);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    bool none = heuristic == CUBLAS_STATUS_NOT_SUPPORTED || heuristic == CUBLAS_STATUS_INVALID_VALUE;
    if (none) return algorithms;
    TANDEM_RETURN_IF_ERROR(f_.Check("cublasLtMatmulAlgoGetHeuristic", heuristic));
    for (int i = 0; i < found; ++i) {
      const auto& result = results[static_cast<size_t>(i)];
      if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
    }
    return algorithms;
  }

  Result<bool> Supports(const LtProduct& product, const cublasLtMatmulAlgo_t& algorithm,
                        size_t workspace_bytes) override {
    Descriptors descriptors(f_);
    TANDEM_RETURN_IF_ERROR(descriptors.Make(product, Placeholders(product)));
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t checked =
        f_.cublasLtMatmulAlgoCheck_(handle_, descriptors.operation, descriptors.x, descriptors.y,
                                    descriptors.d, descriptors.d, &algorithm, &result);
    return checked == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes;
  }

  Status Run(const LtProduct& product, const LtOperands& operands, const cublasLtMatmulAlgo_t& algorithm,
             void* workspace, size_t workspace_bytes, CUstream stream) override {
    Descriptors descriptors(f_);
    TANDEM_RETURN_IF_ERROR(descriptors.Make(product, operands));
    return f_.Check(
        "cublasLtMatmul",
        f_.cublasLtMatmul_(handle_, descriptors.operation, &operands.alpha, operands.x, descriptors.x,
                           operands.y, descriptors.y, &operands.beta, operands.d, descriptors.d, operands.d,
                           descriptors.d, &algorithm, workspace, workspace_bytes, stream));
  }

 private:
  // Scales and bias are described by their modes, but addresses must be set. They are not read. cuBLASLt
  // looks at their alignment: for an fp8 product with a bias at no multiple of 16 it has no candidates.
  static LtOperands Placeholders(const LtProduct& product) {
    alignas(kVectorAlignment) static const std::byte kPlaceholder[2 * kVectorAlignment] = {};
    LtOperands operands;
    operands.x_scale = operands.y_scale = kPlaceholder;
    operands.bias = kPlaceholder + product.alignment % kVectorAlignment;
    return operands;
  }

  template <typename Value>
  Status Prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                Value value) {
    return f_.Check("cublasLtMatmulPreferenceSetAttribute",
                    f_.cublasLtMatmulPreferenceSetAttribute_(preference, attribute, &value, sizeof(value)));
  }

  const CublasFunctions& f_;
  const cublasLtHandle_t handle_;
};

}  // namespace

Status CublasStatus(const char* call, cublasStatus_t status, const char* text) {
  if (status == CUBLAS_STATUS_SUCCESS) return Status::Ok();
  std::string message = std::string(call) + ": cuBLAS error " + std::to_string(static_cast<int>(status)) +
                        (text != nullptr ? std::string(": ") + text : "");
  switch (status) {
    case CUBLAS_STATUS_INVALID_VALUE: return InvalidArgument(message);
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH: return Unimplemented(message);
    case CUBLAS_STATUS_ALLOC_FAILED: return ResourceExhausted(message);
    default: return Internal(message);
  }
}

uint32_t ReductionSchemes(const LtProduct& product) {
  return product.d.type == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_MASK
                                      : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

namespace {

// Loaded once, by whichever thread comes first; the others wait for it.
const Result<const CublasFunctions*>& LoadFunctions() {
  static const Result<const CublasFunctions*> functions = []() -> Result<const CublasFunctions*> {
    TANDEM_ASSIGN_OR_RETURN(DynamicLibrary library,
                            DynamicLibrary::Open({"libcublasLt.so.13", "libcublasLt.so"}));
    auto* loaded = new CublasFunctions();
    TANDEM_RETURN_IF_ERROR(loaded->Load(library));
    return static_cast<const CublasFunctions*>(loaded);
  }();
  return functions;
}

}  // namespace

Status PreloadCublasLt() { return LoadFunctions().status(); }

Result<CublasLt*> LoadCublasLt() {
  const Result<const CublasFunctions*>& functions = LoadFunctions();
  if (!functions.ok()) return functions.status();
  const CublasFunctions& f = **functions;
  cublasLtHandle_t handle = nullptr;
  TANDEM_RETURN_IF_ERROR(f.Check("cublasLtCreate", f.cublasLtCreate_(&handle)));
  return static_cast<CublasLt*>(new LoadedCublasLt(f, handle));
}

}  // namespace tandem::cuda
