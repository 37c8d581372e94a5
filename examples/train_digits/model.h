// File: model.h
//
// The model and its local mathematics: an MLP block between two replicated layers, as a Megatron layer is
// cut.
//
//   h = x W0 + b0                     rows sharded, W0 replicated
//   z = gather(h) W1 + b1             W1 cut by columns: all-gather→matmul
//   y = h + scatter(gelu(z) W2) + b2  W2 cut by rows: matmul→reduce-scatter
//   p = softmax(y Wh + bh)            rows sharded, Wh replicated
//
// Rows are samples: what Megatron's sequence parallelism calls the sequence. Everything is row-major fp32.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <vector>

#include "examples/train_digits/dataset.h"

namespace tandem::digits {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixMap = Eigen::Map<Matrix>;
using ConstMatrixMap = Eigen::Map<const Matrix>;

struct ModelShape {
  int width = 64;    // D
  int hidden = 256;  // F, divisible by the world size
  int batch = 128;   // rows of a step over all ranks, before rounding up to the world size
  int world_size = 1;
  int rows() const { return (batch + world_size - 1) / world_size * world_size; }  // M
  int local_rows() const { return rows() / world_size; }                           // m
  int local_hidden() const { return hidden / world_size; }
  // Parameters that every rank holds: W0, b0, b2, Wh, bh.
  int replicated() const { return kPixels * width + width + width + width * kClasses + kClasses; }
};

// Where the replicated parameters lie in one array, so that their gradients are one all-reduce.
struct ReplicatedView {
  ReplicatedView(float* base, const ModelShape& shape);
  MatrixMap w0, b0, b2, wh, bh;
};

// The full model as it is before training: the same for every world size.
struct InitialParameters {
  InitialParameters(const ModelShape& shape, uint64_t seed);
  std::vector<float> replicated;
  Matrix w1;  // [D, F]
  Matrix b1;  // [1, F]
  Matrix w2;  // [F, D]
};

// gelu (tanh form) and its derivative, element by element.
void Gelu(const ConstMatrixMap& z, MatrixMap out);
void GeluBackward(const ConstMatrixMap& z, const ConstMatrixMap& d_out, MatrixMap d_z);

// One rank's rows of a step. `weight` is 1 for a sample, 0 for a padding row.
struct Batch {
  Matrix x;
  std::vector<int> labels;
  std::vector<float> weights;
  int samples = 0;  // of the whole step, over all ranks
};
// Rows [rank * m, (rank + 1) * m) of the step that begins at `first` of `order`.
Batch MakeBatch(const std::vector<Sample>& samples, const std::vector<int>& order, int first,
                const ModelShape& shape, int rank);

// Softmax and cross entropy of own rows. Writes d_logits, already divided by batch.samples; adds to loss_sum
// and correct.
void SoftmaxLoss(const Matrix& logits, const Batch& batch, Matrix* d_logits, double* loss_sum, int* correct);

// One step of SGD with momentum on an array.
void SgdStep(float* parameter, const float* gradient, float* momentum, size_t count, float rate, float decay);

inline constexpr float kLearningRate = 0.08f;
inline constexpr float kMomentum = 0.9f;

}  // namespace tandem::digits
