// File: reference.h
//
// The same training in one process, without Tandem: what the parallel one is held against.
#pragma once

#include <vector>

#include "examples/train_digits/model.h"

namespace tandem::digits {

struct ReferenceResult {
  std::vector<double> loss;  // mean training loss of each epoch
  double accuracy = 0;       // on the test part, after the last epoch
  // Gradients of the first step: replicated, W1 [D, F], b1, W2 [F, D].
  std::vector<float> replicated_gradient;
  Matrix w1_gradient, b1_gradient, w2_gradient;
};

ReferenceResult TrainReference(const Dataset& dataset, ModelShape shape, uint64_t seed, int epochs);

}  // namespace tandem::digits
