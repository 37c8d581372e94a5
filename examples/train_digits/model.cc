#include "examples/train_digits/model.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace tandem::digits {
namespace {

constexpr float kGeluScale = 0.7978845608f;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715f;

void FillNormal(float* data, size_t count, float deviation, std::mt19937_64& random) {
  // Box-Muller by hand: std::normal_distribution may differ between standard libraries.
  for (size_t i = 0; i < count; ++i) {
    double u = (static_cast<double>(random() >> 11) + 0.5) / 9007199254740992.0;
    double v = (static_cast<double>(random() >> 11) + 0.5) / 9007199254740992.0;
    data[i] = deviation * static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
}

}  // namespace

ReplicatedView::ReplicatedView(float* base, const ModelShape& shape)
    : w0(base, kPixels, shape.width),
      b0(w0.data() + w0.size(), 1, shape.width),
      b2(b0.data() + b0.size(), 1, shape.width),
      wh(b2.data() + b2.size(), shape.width, kClasses),
      bh(wh.data() + wh.size(), 1, kClasses) {}

InitialParameters::InitialParameters(const ModelShape& shape, uint64_t seed)
    : replicated(static_cast<size_t>(shape.replicated()), 0.0f),
      w1(shape.width, shape.hidden),
      b1(Matrix::Zero(1, shape.hidden)),
      w2(shape.hidden, shape.width) {
  std::mt19937_64 random(seed);
  ReplicatedView view(replicated.data(), shape);
  auto width = static_cast<float>(shape.width);
  FillNormal(view.w0.data(), static_cast<size_t>(view.w0.size()), std::sqrt(1.0f / kPixels), random);
  FillNormal(view.wh.data(), static_cast<size_t>(view.wh.size()), std::sqrt(1.0f / width), random);
  FillNormal(w1.data(), static_cast<size_t>(w1.size()), std::sqrt(1.0f / width), random);
  FillNormal(w2.data(), static_cast<size_t>(w2.size()), std::sqrt(1.0f / static_cast<float>(shape.hidden)),
             random);
}

void Gelu(const ConstMatrixMap& z, MatrixMap out) {
  auto x = z.array();
  out.array() = 0.5f * x * (1.0f + (kGeluScale * (x + kGeluCubic * x.cube())).tanh());
}

void GeluBackward(const ConstMatrixMap& z, const ConstMatrixMap& d_out, MatrixMap d_z) {
  auto x = z.array();
  Matrix t = (kGeluScale * (x + kGeluCubic * x.cube())).tanh().matrix();
  d_z.array() =
      d_out.array() * (0.5f * (1.0f + t.array()) + 0.5f * x * (1.0f - t.array().square()) * kGeluScale *
                                                       (1.0f + 3.0f * kGeluCubic * x.square()));
}

Batch MakeBatch(const std::vector<Sample>& samples, const std::vector<int>& order, int first,
                const ModelShape& shape, int rank) {
  int m = shape.local_rows();
  Batch batch;
  batch.x = Matrix::Zero(m, kPixels);
  batch.labels.assign(static_cast<size_t>(m), 0);
  batch.weights.assign(static_cast<size_t>(m), 0.0f);
  batch.samples = std::min(shape.batch, static_cast<int>(order.size()) - first);
  for (int row = 0; row < m; ++row) {
    int position = rank * m + row;
    if (position >= batch.samples) continue;
    const Sample& sample =
        samples[static_cast<size_t>(order[static_cast<size_t>(first) + static_cast<size_t>(position)])];
    for (int pixel = 0; pixel < kPixels; ++pixel) batch.x(row, pixel) = sample.pixels[pixel];
    batch.labels[static_cast<size_t>(row)] = sample.label;
    batch.weights[static_cast<size_t>(row)] = 1.0f;
  }
  return batch;
}

void SoftmaxLoss(const Matrix& logits, const Batch& batch, Matrix* d_logits, double* loss_sum, int* correct) {
  d_logits->resize(logits.rows(), logits.cols());
  for (Eigen::Index row = 0; row < logits.rows(); ++row) {
    auto index = static_cast<size_t>(row);
    Eigen::Index best = 0;
    float peak = logits.row(row).maxCoeff(&best);
    Eigen::Array<float, 1, Eigen::Dynamic> powers = (logits.row(row).array() - peak).exp();
    float sum = powers.sum();
    float weight = batch.weights[index] / static_cast<float>(batch.samples);
    d_logits->row(row) = (powers / sum * weight).matrix();
    (*d_logits)(row, batch.labels[index]) -= weight;
    if (batch.weights[index] == 0.0f) continue;
    *loss_sum += std::log(sum) + peak - logits(row, batch.labels[index]);
    if (best == batch.labels[index]) ++*correct;
  }
}

void SgdStep(float* parameter, const float* gradient, float* momentum, size_t count, float rate,
             float decay) {
  for (size_t i = 0; i < count; ++i) {
    momentum[i] = decay * momentum[i] + gradient[i];
    parameter[i] -= rate * momentum[i];
  }
}

}  // namespace tandem::digits
