#include "kernels/cuda/matmul/matmul_plan.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/device/collective.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/matmul/block_scales.h"
#include "kernels/host/matmul.h"
#include "kernels/host/strided.h"

namespace tandem::cuda {
namespace {

constexpr uint32_t kAligned = 16;

uint32_t ElementAlignment(const MatmulArgs& args) {
  return static_cast<uint32_t>(
      std::min({DTypeBytes(args.a.dtype), DTypeBytes(args.b.dtype), DTypeBytes(args.c.dtype)}));
}

int64_t RowsOf(const MatmulArgs& args) { return plan::LeadingRows(args.c); }

int64_t ChunkRows(const MatmulArgs& args) { return (RowsOf(args) + args.chunks() - 1) / args.chunks(); }

// Bytes from the first element of a stored matrix to the end of the last one.
size_t BytesOf(const LtMatrix& matrix) {
  size_t element = matrix.type == CUDA_R_32F                                 ? 4
                   : matrix.type == CUDA_R_16F || matrix.type == CUDA_R_16BF ? 2
                                                                             : 1;
  return ((matrix.columns - 1) * static_cast<size_t>(matrix.leading) + matrix.rows) * element;
}

DType TypeOf(cudaDataType_t type) {
  for (DType candidate : {DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2}) {
    if (LtType(candidate) == type) return candidate;
  }
  return DType::kF32;
}

// "a product of 72x80 bf16 and 80x100 bf16 into f32, aligned to 2 bytes".
std::string TextOf(const LtProduct& product) {
  const uint64_t k = product.k();
  return "a product of " + std::to_string(product.d.rows) + "x" + std::to_string(k) + " " +
         std::string(DTypeName(TypeOf(product.x.type))) + " and " + std::to_string(k) + "x" +
         std::to_string(product.d.columns) + " " + std::string(DTypeName(TypeOf(product.y.type))) + " into " +
         std::string(DTypeName(TypeOf(product.d.type))) +
         (product.HasBlockScales() ? ", scales by blocks" : "") + ", aligned to " +
         std::to_string(product.alignment) + " bytes";
}

uint64_t RowsOf(const LtMapping& mapping) {
  return mapping.swapped ? mapping.product.d.columns : mapping.product.d.rows;
}

// The product without its rows: equal for products that differ in them alone.
LtProduct OfAnyRows(const LtMapping& mapping) {
  LtProduct product = mapping.product;
  LtMatrix& a = mapping.swapped ? product.y : product.x;
  // Rows of C are rows of op(X), or columns of op(Y).
  (a.transposed == mapping.swapped ? a.rows : a.columns) = 0;
  (mapping.swapped ? product.d.columns : product.d.rows) = 0;
  return product;
}

Factors MakeFactors(bool has, const DeviceView& view) {
  if (!has) return {nullptr, 0, 0};
  // One dimension at most varies: the others have one element.
  int64_t stride = 0;
  for (size_t d = 0; d < view.extent.size(); ++d) {
    if (view.extent[d] != 1) stride = view.stride[d];
  }
  return {view.data, stride, static_cast<uint8_t>(view.dtype)};
}

Status EnqueuePlain(const MatmulArgs& args, int64_t first, int64_t last, CUstream stream) {
  MatmulLaunch launch = {};
  launch.a = args.a.data;
  launch.b = args.b.data;
  launch.c = args.c.data;
  launch.a_type = static_cast<uint8_t>(args.a.dtype);
  launch.b_type = static_cast<uint8_t>(args.b.dtype);
  launch.c_type = static_cast<uint8_t>(args.c.dtype);
  size_t dims = args.a.extent.size() - 1;
  if (dims > kMaxDims) return Unimplemented("a product with over 8 leading dimensions");
  launch.row_dims = static_cast<int>(dims);
  for (size_t d = 0; d < dims; ++d) {
    launch.row_extent[d] = args.a.extent[d];
    launch.a_row_stride.of[d] = args.a.stride[d];
    launch.c_row_stride.of[d] = args.c.stride[d];
  }
  launch.a_column_stride = args.a.stride.back();
  launch.c_column_stride = args.c.stride.back();
  launch.b_row_stride = args.b.stride[0];
  launch.b_column_stride = args.b.stride[1];
  launch.first_row = first;
  launch.last_row = last;
  launch.n = args.c.extent.back();
  launch.k = args.a.extent.back();
  launch.alpha = args.alpha;
  launch.accumulate = args.accumulate;
  launch.bias = MakeFactors(args.has_bias, args.bias);
  if (args.has_result_scale) launch.result_scale = reinterpret_cast<const float*>(args.result_scale.data);
  if (args.block_scales) {
    TANDEM_RETURN_IF_ERROR(SetBlockFactors(args, &launch.blocks));
    return LaunchMatmul(launch, stream);
  }
  launch.scale_a = MakeFactors(args.has_scale_a, args.scale_a);
  launch.scale_b = MakeFactors(args.has_scale_b, args.scale_b);
  // Row scales of several dimensions have strides of their own in each, as a slice of gathered scales does.
  int varying = 0;
  if (args.has_scale_a) {
    for (int64_t extent : args.scale_a.extent) varying += extent != 1;
  }
  if (varying > 1) {
    if (args.scale_a.extent.size() < dims)
      return Unimplemented("row scales of fewer dimensions than A's rows");
    launch.scale_a.stride = 0;
    for (size_t d = 0; d < dims; ++d) {
      if (args.scale_a.extent[d] != args.a.extent[d])
        return Unimplemented("row scales split otherwise than A's rows");
      launch.scale_a_row_stride.of[d] = args.scale_a.stride[d];
    }
  }
  return LaunchMatmul(launch, stream);
}

}  // namespace

const TrialCalls kTrialCalls = {.fill = &LaunchRandom, .pause = &LaunchPause};

void MatmulChooser::Forget(const LtProduct& product) {
  std::lock_guard lock(mutex_);
  choices_[product].choice.reset();
  first_choices_[product].reset();
}

Result<MatmulChooser::Choice> MatmulChooser::Choose(const LtMapping& mapping, TrialEffort* left) {
  const LtProduct& product = mapping.product;
  {
    std::lock_guard lock(mutex_);
    const auto known = choices_.find(product);
    if (known != choices_.end() && (left == nullptr || known->second.tried)) return known->second.choice;
  }
  Choice choice;
  if (left == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(choice, ChooseUntried(mapping));
  } else {
    TANDEM_ASSIGN_OR_RETURN(choice, ChooseStored(product, *left));
    if (!choice.has_value()) {
      TANDEM_ASSIGN_OR_RETURN(choice, ChooseTried(mapping, left));
    }
  }
  std::lock_guard lock(mutex_);
  if (left != nullptr && choice.has_value()) tried_.push_back({OfAnyRows(mapping), RowsOf(mapping), *choice});
  choices_.insert_or_assign(product, Known{choice, left != nullptr});
  return choice;
}

Result<MatmulChooser::Choice> MatmulChooser::ChooseStored(const LtProduct& product,
                                                          const TrialEffort& effort) {
  if (store_ == nullptr) return Choice();
  const Choice stored = store_->Find(product);
  if (!stored.has_value()) return Choice();
  TANDEM_ASSIGN_OR_RETURN(const bool supported, lt_->Supports(product, *stored, WorkspaceBytes(product)));
  if (!supported) return Choice();
  TrialEffort once = effort;
  once.rounds = 1;
  TANDEM_ASSIGN_OR_RETURN(const size_t fastest, Fastest(product, {*stored}, &once));
  return fastest == 0 ? stored : Choice();
}

Result<MatmulChooser::Choice> MatmulChooser::ChooseTried(const LtMapping& mapping, TrialEffort* left) {
  const LtProduct& product = mapping.product;
  TANDEM_ASSIGN_OR_RETURN(std::vector<cublasLtMatmulAlgo_t> candidates,
                          lt_->Candidates(product, WorkspaceBytes(product), most_candidates_));
  TANDEM_RETURN_IF_ERROR(AddNeighbours(mapping, &candidates));
  if (candidates.empty()) return Choice();
  TANDEM_ASSIGN_OR_RETURN(const size_t fastest, Fastest(product, candidates, left));
  if (fastest == candidates.size()) return Choice();
  // A trial that ended early is worth another one in the next process.
  if (store_ != nullptr && left->budget_ms > 0) store_->Add(product, candidates[fastest]);
  return Choice(candidates[fastest]);
}

Status MatmulChooser::AddNeighbours(const LtMapping& mapping,
                                    std::vector<cublasLtMatmulAlgo_t>* candidates) const {
  const LtProduct of_any_rows = OfAnyRows(mapping);
  const uint64_t rows = RowsOf(mapping);
  std::optional<Tried> fewer, more;
  {
    std::lock_guard lock(mutex_);
    for (const Tried& one : tried_) {
      if (!(one.of_any_rows == of_any_rows)) continue;
      if (one.rows < rows && (!fewer.has_value() || one.rows > fewer->rows)) fewer = one;
      if (one.rows > rows && (!more.has_value() || one.rows < more->rows)) more = one;
    }
  }
  for (const std::optional<Tried>& one : {fewer, more}) {
    if (!one.has_value()) continue;
    const auto same = [&](const cublasLtMatmulAlgo_t& known) {
      return std::ranges::equal(known.data, one->algorithm.data);
    };
    if (std::ranges::any_of(*candidates, same)) continue;
    TANDEM_ASSIGN_OR_RETURN(const bool supported,
                            lt_->Supports(mapping.product, one->algorithm, WorkspaceBytes(mapping.product)));
    if (supported) candidates->push_back(one->algorithm);
  }
  return Status::Ok();
}

Result<MatmulChooser::Choice> MatmulChooser::ChooseUntried(const LtMapping& mapping) {
  const LtProduct& product = mapping.product;
  const LtProduct of_any_rows = OfAnyRows(mapping);
  const uint64_t rows = RowsOf(mapping);
  Choice nearest;
  {
    std::lock_guard lock(mutex_);
    const Tried* best = nullptr;
    // More rows before fewer, and the nearest of them.
    const auto before = [rows](const Tried& a, const Tried& b) {
      if ((a.rows >= rows) != (b.rows >= rows)) return a.rows >= rows;
      return a.rows >= rows ? a.rows < b.rows : a.rows > b.rows;
    };
    for (const Tried& one : tried_) {
      if (one.of_any_rows == of_any_rows && (best == nullptr || before(one, *best))) best = &one;
    }
    if (best != nullptr) nearest = best->algorithm;
  }
  if (nearest.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const bool supported, lt_->Supports(product, *nearest, WorkspaceBytes(product)));
    if (supported) return nearest;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> candidates,
                          lt_->Candidates(product, WorkspaceBytes(product), 1));
  return candidates.empty() ? Choice() : Choice(candidates.front());
}

Result<MatmulChooser::Choice> MatmulChooser::ChooseFirst(const LtMapping& mapping) {
  const LtProduct& product = mapping.product;
  {
    std::lock_guard lock(mutex_);
    if (const auto known = first_choices_.find(product); known != first_choices_.end()) return known->second;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> candidates,
                          lt_->Candidates(product, WorkspaceBytes(product), 1));
  const Choice choice = candidates.empty() ? Choice() : Choice(candidates.front());
  std::lock_guard lock(mutex_);
  first_choices_.insert_or_assign(product, choice);
  return choice;
}

// The fastest candidate's index; candidates.size() when none of them runs. The first, the heuristics' best
// guess, where there is no time left for a trial, or no memory.
Result<size_t> MatmulChooser::Fastest(const LtProduct& product,
                                      const std::vector<cublasLtMatmulAlgo_t>& candidates,
                                      TrialEffort* left) {
  if (LeastMs(product) >= left->budget_ms) {
    left->budget_ms = 0;
    return 0;
  }
  std::lock_guard trial(trial_mutex_);
  // The context of a fault: the last work on the stream.
  std::string last = "filling its operands";
  Result<size_t> fastest = TryAll(product, candidates, left, &last);
  // However the trial went: nothing may run on its memory from here on.
  Status ended = trial_memory_.Release(device_->service_stream());
  if (fastest.ok() && !ended.ok()) fastest = ended;
  if (fastest.ok()) return fastest;
  return fastest.status().WithContext("the trial of " + TextOf(product) + ", " + last);
}

Result<size_t> MatmulChooser::TryAll(const LtProduct& product,
                                     const std::vector<cublasLtMatmulAlgo_t>& candidates, TrialEffort* left,
                                     std::string* last) {
  CudaDriver& driver = device_->driver();
  CUstream stream = device_->service_stream();
  // An unaligned operand still lies at a multiple of an element.
  auto shift_of = [&](DType type) {
    return product.alignment < kAligned ? std::max<size_t>(product.alignment, DTypeBytes(type)) : 0;
  };
  LtOperands operands;
  struct Need {
    size_t elements;
    DType type;
    const void** target;
  };
  auto elements = [](const LtMatrix& matrix) { return BytesOf(matrix) / DTypeBytes(TypeOf(matrix.type)); };
  const void* d = nullptr;
  std::vector<Need> needs = {{elements(product.x), TypeOf(product.x.type), &operands.x},
                             {elements(product.y), TypeOf(product.y.type), &operands.y},
                             {elements(product.d), TypeOf(product.d.type), &d}};
  if (product.x_scales != LtScale::kNone) {
    needs.push_back(
        {ScaleElements(product.x_scales, product.d.rows, product.k()), DType::kF32, &operands.x_scale});
    needs.push_back(
        {ScaleElements(product.y_scales, product.d.columns, product.k()), DType::kF32, &operands.y_scale});
  }
  if (product.has_bias) needs.push_back({product.d.rows, TypeOf(product.bias_type), &operands.bias});
  std::vector<size_t> sizes;
  sizes.reserve(needs.size() + 1);
  for (const Need& need : needs) sizes.push_back(need.elements * DTypeBytes(need.type) + shift_of(need.type));
  sizes.push_back(kMatmulWorkspaceBytes);
  const auto taken = trial_memory_.Take(sizes);
  if (taken.status().code() == Code::kResourceExhausted) {
    left->budget_ms = 0;
    return 0;
  }
  TANDEM_RETURN_IF_ERROR(taken.status());
  const std::vector<std::byte*>& parts = *taken;
  for (size_t i = 0; i < needs.size(); ++i) {
    const Need& need = needs[i];
    // Scales, and what else AlignVectors sees to, are aligned when it comes to it.
    bool is_vector = need.target == &operands.x_scale || need.target == &operands.y_scale ||
                     (need.target == &operands.bias && IsFloat8(TypeOf(product.x.type)));
    std::byte* base = parts[i] + (is_vector ? 0 : shift_of(need.type));
    *need.target = base;
    TANDEM_RETURN_IF_ERROR(calls_.fill(base, need.type, static_cast<int64_t>(need.elements),
                                       static_cast<uint32_t>(i + 1), stream));
  }
  TANDEM_RETURN_IF_ERROR(driver.StreamSynchronize(stream));
  operands.d = const_cast<void*>(d);
  return MatmulTrial({.driver = driver,
                      .lt = *lt_,
                      .product = product,
                      .operands = operands,
                      .workspace = parts.back(),
                      .workspace_bytes = WorkspaceBytes(product),
                      .stream = stream,
                      .pause = calls_.pause,
                      .last = last,
                      .left = left},
                     candidates)
      .Fastest();
}

Status MatmulChooser::Prepare(const MatmulArgs& args, const TrialEffort& effort) {
  if (lt_ == nullptr || args.repeatable || args.fixed_order) return Status::Ok();
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  int64_t rows = RowsOf(args), chunk_rows = ChunkRows(args);
  if (rows == 0 || chunk_rows == 0) return Status::Ok();
  // With chunks every call has a chunk's rows, the last one what remains.
  int64_t remainder = rows % chunk_rows;
  std::string reason;
  // Aligned addresses, the usual ones, are first to share the budget.
  TrialEffort left = effort;
  for (uint32_t alignment : {kAligned, ElementAlignment(args)}) {
    if (alignment < kAligned && !effort.unaligned) continue;
    for (int64_t part : {chunk_rows, remainder}) {
      if (part == 0) continue;
      auto mapping = MapToLt(args, part, alignment, &reason);
      if (mapping) TANDEM_RETURN_IF_ERROR(Choose(*mapping, &left).status());
    }
  }
  return Status::Ok();
}

void MatmulChooser::GiveBackTrialMemory() {
  std::lock_guard trial(trial_mutex_);
  trial_memory_.GiveBack();
}

Status MatmulChooser::Enqueue(const MatmulArgs& args, std::byte* scratch, CUstream stream) {
  TANDEM_RETURN_IF_ERROR(host::CheckMatmul(args));
  int64_t rows = RowsOf(args), chunk_rows = ChunkRows(args);
  if (rows == 0 || args.c.extent.back() == 0) return Status::Ok();
  for (int i = 0; i < args.chunks(); ++i) {
    int chunk = (args.chunk_pivot + i) % args.chunks();
    int64_t first = std::min(rows, chunk * chunk_rows), last = std::min(rows, first + chunk_rows);
    if (args.chunk_words() != nullptr) {
      // A kernel of one thread, not a memory operation: nobody else could end the wait for a word of the
      // user's own.
      WaitLimits limits;
      limits.abort_word = reinterpret_cast<const uint64_t*>(args.abort_word);
      TANDEM_RETURN_IF_ERROR(LaunchAwaitWord32(args.chunk_words() + chunk, limits, stream));
    }
    if (first < last) TANDEM_RETURN_IF_ERROR(EnqueueRows(args, first, last, scratch, stream));
  }
  return Status::Ok();
}

Status MatmulChooser::EnqueueRows(const MatmulArgs& args, int64_t first, int64_t last, std::byte* scratch,
                                  CUstream stream) {
  std::string reason;
  // cuBLASLt's kernels cut K by the number of rows; the plain one never cuts it.
  const bool plain = lt_ == nullptr || args.fixed_order;
  auto mapping = plain ? std::nullopt : MapToLt(args, last - first, kAligned, &reason);
  if (!mapping) return EnqueuePlain(args, first, last, stream);
  // Evenly spaced rows, as MapToLt has seen: the innermost leading dimension that varies gives their
  // distance.
  auto row_stride = [&](const DeviceView& view) {
    for (size_t d = view.extent.size() - 1; d-- > 0;) {
      if (view.extent[d] != 1) return view.stride[d];
    }
    return int64_t{0};
  };
  auto at_row = [&](const DeviceView& view) {
    return view.data + first * row_stride(view) * static_cast<int64_t>(DTypeBytes(view.dtype));
  };
  std::byte* a = at_row(args.a);
  std::byte* c = at_row(args.c);
  LtOperands operands;
  operands.x = mapping->swapped ? args.b.data : a;
  operands.y = mapping->swapped ? a : args.b.data;
  operands.d = c;
  operands.alpha = args.alpha;
  operands.beta = args.accumulate ? 1.0f : 0.0f;
  if (args.block_scales) {
    TANDEM_ASSIGN_OR_RETURN(bool arranged,
                            PlaceBlockScales(args, first, last, *mapping,
                                             scratch + WorkspaceBytes(mapping->product), stream, &operands));
    if (!arranged) return EnqueuePlain(args, first, last, stream);
  } else if (mapping->product.x_scales != LtScale::kNone) {
    const std::byte* scale_a = args.scale_a.data;
    if (mapping->product.x_scales == LtScale::kVector) scale_a += first * static_cast<int64_t>(sizeof(float));
    operands.x_scale = mapping->swapped ? args.scale_b.data : scale_a;
    operands.y_scale = mapping->swapped ? scale_a : args.scale_b.data;
  }
  if (mapping->product.has_bias) operands.bias = args.bias.data;
  auto addresses = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(args.b.data) |
                   reinterpret_cast<uintptr_t>(c);
  if (IsFloat8(args.a.dtype)) {
    TANDEM_ASSIGN_OR_RETURN(bool aligned, AlignVectors(mapping->product, scratch + kMatmulWorkspaceBytes,
                                                       device_->driver(), stream, &operands));
    if (!aligned) return EnqueuePlain(args, first, last, stream);
  } else {
    addresses |= reinterpret_cast<uintptr_t>(operands.bias);
  }
  if (addresses % kAligned != 0) mapping->product.alignment = ElementAlignment(args);
  TANDEM_ASSIGN_OR_RETURN(const Choice algorithm,
                          args.repeatable ? ChooseFirst(*mapping) : Choose(*mapping, nullptr));
  if (!algorithm) return EnqueuePlain(args, first, last, stream);
  Status status =
      lt_->Run(mapping->product, operands, *algorithm, scratch, WorkspaceBytes(mapping->product), stream);
  if (status.code() != Code::kUnimplemented) return status;
  // Refused for what the heuristics cannot know, addresses for one; nothing has been enqueued.
  Forget(mapping->product);
  return EnqueuePlain(args, first, last, stream);
}

}  // namespace tandem::cuda
