#include "tests/conformance/reference_matmul.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

namespace tandem::conformance {
namespace {

using Shape = std::vector<int64_t>;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Above so many multiplications only some rows are computed.
constexpr int64_t kMaxMultiplications = 1 << 27;

size_t At(int64_t index) { return static_cast<size_t>(index); }

class MatmulOfRank {
 public:
  MatmulOfRank(const Case& test, const AllInputs& inputs, int rank, int slot)
      : test_(test),
        inputs_(inputs),
        rank_(rank),
        world_(static_cast<int>(test.requests.size())),
        request_(test.requests[At(rank)]),
        c_slot_(slot) {
    while (FindSlot(request_, Role::kC, nth_) != slot) ++nth_;
    const Shape& c = request_.operands[At(slot)].spec.shape;
    columns_ = c.back();
    rows_ = CountOf(Shape(c.begin(), c.end() - 1));
    k_ = request_.operands[At(FindSlot(request_, Role::kB, nth_))].spec.shape[0];
  }

  Expected Run() {
    ChooseRows();
    values_ = Matrix::Zero(static_cast<Eigen::Index>(chosen_.size()), columns_);
    parts_ = terms_ = blocks_ = values_;
    if (request_.op == Op::kMatmulReduceScatter || request_.op == Op::kMatmulAllReduce) {
      for (int peer = 0; peer < world_; ++peer) AddProduct(peer);
      if (request_.reduce_op == ReduceOp::kAvg) values_ /= world_;
    } else {
      AddProduct(rank_);
    }
    Epilogue();
    Expected expected;
    expected.values.assign(values_.data(), values_.data() + values_.size());
    expected.parts.assign(parts_.data(), parts_.data() + parts_.size());
    expected.terms.assign(terms_.data(), terms_.data() + terms_.size());
    if (static_cast<int64_t>(chosen_.size()) != rows_) {
      for (int64_t row : chosen_) {
        for (int64_t j = 0; j < columns_; ++j) expected.elements.push_back(row * columns_ + j);
      }
    }
    return expected;
  }

 private:
  std::vector<double> Doubles(int rank, Role role, int nth = 0) const {
    const OpRequest& request = test_.requests[At(rank)];
    const int slot = FindSlot(request, role, nth);
    if (slot < 0) return {};
    return ToDoubles(inputs_[At(rank)][At(slot)], request.operands[At(slot)].spec.dtype);
  }
  const TensorSpec& SpecOf(Role role, int nth = 0) const {
    return request_.operands[At(FindSlot(request_, role, nth))].spec;
  }
  int Dim() const { return FrontDim(request_, SpecOf(Role::kA).shape.size()); }
  bool ScattersColumns() const {
    return request_.op == Op::kMatmulReduceScatter &&
           Dim() + 1 == static_cast<int>(SpecOf(Role::kA).shape.size());
  }

  // All of C's rows, or the ends of every rank's part and some in between.
  void ChooseRows() {
    const bool sums = request_.op == Op::kMatmulReduceScatter || request_.op == Op::kMatmulAllReduce;
    const int64_t per_row = std::max<int64_t>(1, columns_ * k_ * (sums ? world_ : 1));
    const int64_t allowed = std::max<int64_t>(4 * world_, kMaxMultiplications / per_row);
    if (rows_ <= allowed) {
      for (int64_t row = 0; row < rows_; ++row) chosen_.push_back(row);
      return;
    }
    for (int part = 0; part < world_; ++part) {
      chosen_.push_back(rows_ * part / world_);
      chosen_.push_back(rows_ * (part + 1) / world_ - 1);
    }
    const int64_t step = std::max<int64_t>(1, rows_ / (allowed / 2));
    for (int64_t row = step / 2; row < rows_; row += step) chosen_.push_back(row);
    std::sort(chosen_.begin(), chosen_.end());
    chosen_.erase(std::unique(chosen_.begin(), chosen_.end()), chosen_.end());
  }

  // Row `row` of this rank's C as a row of the whole product of A's rows.
  int64_t WholeRow(int64_t row) const {
    if (request_.op != Op::kMatmulReduceScatter || ScattersColumns()) return row;
    const Shape& a = SpecOf(Role::kA).shape;
    const int64_t inner = CountOf(Shape(a.begin() + Dim() + 1, a.end() - 1));
    const int64_t length = a[At(Dim())] / world_;  // of a chunk
    const int64_t outer = row / (length * inner), rest = row % (length * inner);
    return (outer * world_ + rank_) * length * inner + rest;
  }

  // The factors of row `whole` of A on `peer`: gathered from all ranks, scaled where a scale cannot be taken
  // out.
  void FillRow(int64_t whole, const std::vector<std::vector<double>>& shards,
               const std::vector<std::vector<double>>& scales, double* out) const {
    const Shape& a = SpecOf(Role::kA).shape;
    if (request_.op != Op::kAllGatherMatmul) {
      std::copy_n(shards[0].begin() + whole * k_, k_, out);
      return;
    }
    const int dim = Dim();
    if (dim + 1 == static_cast<int>(a.size())) {  // along K: a piece from each rank
      const int64_t piece = a.back();
      for (int peer = 0; peer < world_; ++peer) {
        const double scale = scales.empty() ? 1.0 : scales[At(peer)][At(whole)];
        for (int64_t x = 0; x < piece; ++x) *out++ = shards[At(peer)][At(whole * piece + x)] * scale;
      }
      return;
    }
    const auto [peer, row] = OwnerOfRow(whole);
    std::copy_n(shards[At(peer)].begin() + row * k_, k_, out);
  }
  // Gathering along a leading dimension: the rank with row `whole` of the gathered A, and that row's index
  // there.
  std::pair<int64_t, int64_t> OwnerOfRow(int64_t whole) const {
    const Shape& a = SpecOf(Role::kA).shape;
    const int64_t inner = CountOf(Shape(a.begin() + Dim() + 1, a.end() - 1)), length = a[At(Dim())];
    const int64_t block = length * inner;
    const int64_t outer = whole / (block * world_), rest = whole % (block * world_);
    return {rest / block, outer * block + rest % block};
  }

  bool ScaleTravels() const {
    if (request_.op != Op::kAllGatherMatmul || FindSlot(request_, Role::kScaleA) < 0) return false;
    return SpecOf(Role::kScaleA).shape == OwnScaleShape(request_);
  }

  // The factor of row `whole` of A on `peer` for block `block` of K, where scales are by blocks.
  double BlockFactor(const std::vector<std::vector<double>>& shards, const std::vector<double>& own,
                     int64_t whole, int64_t block) const {
    const int64_t own_blocks = SpecOf(Role::kScaleA).shape.back();
    if (shards.empty()) return own[At(whole * own_blocks + block)];
    const bool along_k = Dim() + 1 == static_cast<int>(SpecOf(Role::kA).shape.size());
    if (along_k) return shards[At(block / own_blocks)][At(whole * own_blocks + block % own_blocks)];
    const auto [owner, row] = OwnerOfRow(whole);
    return shards[At(owner)][At(row * own_blocks + block)];
  }

  // Each block of K by itself.
  void AddBlocks(const Matrix& factors, const Matrix& own_b,
                 const std::vector<std::vector<double>>& travelling, const std::vector<double>& scale_a,
                 const std::vector<double>& scale_b, int64_t first) {
    const int64_t blocks = (k_ + kScaleBlock - 1) / kScaleBlock;
    const int64_t of_n = SpecOf(Role::kScaleB, nth_).shape[1],
                  shared = of_n == SpecOf(Role::kB, nth_).shape[1] ? 1 : kScaleBlock;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t begin = block * kScaleBlock, depth = std::min(kScaleBlock, k_ - begin);
      Matrix product = factors.middleCols(begin, depth) * own_b.middleRows(begin, depth);
      Matrix magnitude =
          factors.middleCols(begin, depth).cwiseAbs() * own_b.middleRows(begin, depth).cwiseAbs();
      for (size_t i = 0; i < chosen_.size(); ++i) {
        const double of_a = BlockFactor(travelling, scale_a, WholeRow(chosen_[i]), block);
        for (int64_t j = 0; j < columns_; ++j) {
          const double both = of_a * scale_b[At(block * of_n + (first + j) / shared)];
          product(static_cast<Eigen::Index>(i), j) *= both;
          magnitude(static_cast<Eigen::Index>(i), j) *= std::fabs(both);
        }
      }
      values_ += product;
      blocks_ += product;
      terms_ += magnitude;
    }
    parts_ += blocks_.cwiseAbs();
    blocks_.setZero();
  }

  void AddProduct(int peer) {
    std::vector<std::vector<double>> shards, travelling;
    if (request_.op == Op::kAllGatherMatmul) {
      for (int p = 0; p < world_; ++p) {
        shards.push_back(Doubles(p, Role::kA));
        if (ScaleTravels()) travelling.push_back(Doubles(p, Role::kScaleA));
      }
    } else {
      shards.push_back(Doubles(peer, Role::kA));
    }
    const bool along_k =
        request_.op == Op::kAllGatherMatmul && Dim() + 1 == static_cast<int>(SpecOf(Role::kA).shape.size());
    const std::vector<double> scale = Doubles(peer, Role::kScaleA),
                              scale_b = Doubles(peer, Role::kScaleB, nth_);
    const std::vector<double> b = Doubles(peer, Role::kB, nth_);
    const bool by_blocks = HasBlockScales(request_);
    const int64_t all_columns = SpecOf(Role::kB, nth_).shape[1];
    const int64_t first = ScattersColumns() ? rank_ * columns_ : 0;
    Matrix factors(static_cast<Eigen::Index>(chosen_.size()), k_);
    for (size_t i = 0; i < chosen_.size(); ++i) {
      FillRow(WholeRow(chosen_[i]), shards,
              along_k && !by_blocks ? travelling : std::vector<std::vector<double>>(),
              factors.data() + static_cast<int64_t>(i) * k_);
    }
    const Eigen::Map<const Matrix> whole_b(b.data(), k_, all_columns);
    const Matrix own_b = whole_b.middleCols(first, columns_);
    if (by_blocks) {
      AddBlocks(factors, own_b, travelling, scale, scale_b, first);
      return;
    }
    Matrix product = factors * own_b;
    Matrix magnitude = factors.cwiseAbs() * own_b.cwiseAbs();
    for (size_t i = 0; i < chosen_.size(); ++i) {
      double factor = 1.0;
      if (ScaleTravels()) {
        if (!along_k) {
          const auto [owner, row] = OwnerOfRow(chosen_[i]);
          factor = travelling[At(owner)][At(row)];
        }
      } else if (!scale.empty()) {
        factor = scale[scale.size() == 1 ? 0 : At(WholeRow(chosen_[i]))];
      }
      for (int64_t j = 0; j < columns_; ++j) {
        const double both =
            factor * (scale_b.empty() ? 1.0 : scale_b[scale_b.size() == 1 ? 0 : At(first + j)]);
        product(static_cast<Eigen::Index>(i), j) *= both;
        magnitude(static_cast<Eigen::Index>(i), j) *= std::fabs(both);
      }
    }
    values_ += product;
    parts_ += product.cwiseAbs();
    terms_ += magnitude;
  }

  // (sum + bias) * result scale.
  void Epilogue() {
    const std::vector<double> bias = Doubles(rank_, Role::kBias, nth_),
                              scale = Doubles(rank_, Role::kResultScale, nth_);
    const int64_t first = ScattersColumns() ? rank_ * columns_ : 0;
    const double factor = scale.empty() ? 1.0 : scale[0];
    for (Eigen::Index i = 0; i < values_.rows(); ++i) {
      for (int64_t j = 0; j < columns_; ++j) {
        const double added = bias.empty() ? 0.0 : bias[At(first + j)];
        values_(i, j) = (values_(i, j) + added) * factor;
        parts_(i, j) = (parts_(i, j) + std::fabs(added)) * std::fabs(factor);
        terms_(i, j) = (terms_(i, j) + std::fabs(added)) * std::fabs(factor);
      }
    }
  }

  const Case& test_;
  const AllInputs& inputs_;
  const int rank_, world_;
  const OpRequest& request_;
  const int c_slot_;
  int nth_ = 0;
  int64_t rows_ = 0, columns_ = 0, k_ = 0;
  std::vector<int64_t> chosen_;
  Matrix values_, parts_, terms_, blocks_;
};

}  // namespace

Expected MatmulReference(const Case& test, const AllInputs& inputs, int rank, int slot) {
  return MatmulOfRank(test, inputs, rank, slot).Run();
}

}  // namespace tandem::conformance
