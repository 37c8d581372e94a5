#include "examples/train_digits/reference.h"

namespace tandem::digits {
namespace {

struct Network {
  Network(const ModelShape& model_shape, uint64_t seed)
      : shape(model_shape), parameters(shape, seed), gradient(shape, 0), momentum(shape, 0) {
    for (InitialParameters* p : {&gradient, &momentum}) {
      std::fill(p->replicated.begin(), p->replicated.end(), 0.0f);
      p->w1.setZero();
      p->b1.setZero();
      p->w2.setZero();
    }
  }

  Matrix Forward(const Matrix& x) {
    ReplicatedView p(parameters.replicated.data(), shape);
    h = (x * p.w0).rowwise() + p.b0.row(0);
    z = (h * parameters.w1).rowwise() + parameters.b1.row(0);
    a.resize(z.rows(), z.cols());
    Gelu(ConstMatrixMap(z.data(), z.rows(), z.cols()), MatrixMap(a.data(), a.rows(), a.cols()));
    y = h + ((a * parameters.w2).rowwise() + p.b2.row(0));
    return (y * p.wh).rowwise() + p.bh.row(0);
  }

  void Backward(const Matrix& x, const Matrix& d_logits) {
    ReplicatedView p(parameters.replicated.data(), shape), g(gradient.replicated.data(), shape);
    g.wh = y.transpose() * d_logits;
    g.bh = d_logits.colwise().sum();
    Matrix dy = d_logits * p.wh.transpose();
    g.b2 = dy.colwise().sum();
    gradient.w2 = a.transpose() * dy;
    Matrix da = dy * parameters.w2.transpose();
    Matrix dz(z.rows(), z.cols());
    GeluBackward(ConstMatrixMap(z.data(), z.rows(), z.cols()),
                 ConstMatrixMap(da.data(), da.rows(), da.cols()), MatrixMap(dz.data(), dz.rows(), dz.cols()));
    gradient.w1 = h.transpose() * dz;
    gradient.b1 = dz.colwise().sum();
    Matrix dh = dy + dz * parameters.w1.transpose();
    g.w0 = x.transpose() * dh;
    g.b0 = dh.colwise().sum();
  }

  void Update() {
    auto step = [](float* p, const float* g, float* m, auto count) {
      SgdStep(p, g, m, static_cast<size_t>(count), kLearningRate, kMomentum);
    };
    step(parameters.replicated.data(), gradient.replicated.data(), momentum.replicated.data(),
         gradient.replicated.size());
    step(parameters.w1.data(), gradient.w1.data(), momentum.w1.data(), gradient.w1.size());
    step(parameters.b1.data(), gradient.b1.data(), momentum.b1.data(), gradient.b1.size());
    step(parameters.w2.data(), gradient.w2.data(), momentum.w2.data(), gradient.w2.size());
  }

  ModelShape shape;
  InitialParameters parameters, gradient, momentum;
  Matrix h, z, a, y;
};

}  // namespace

ReferenceResult TrainReference(const Dataset& dataset, ModelShape shape, uint64_t seed, int epochs) {
  shape.world_size = 1;
  Network network(shape, seed);
  ReferenceResult result;
  Matrix d_logits;
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    std::vector<int> order = EpochOrder(static_cast<int>(dataset.train.size()), seed, epoch);
    double loss = 0;
    int correct = 0;
    for (int first = 0; first < static_cast<int>(order.size()); first += shape.batch) {
      Batch batch = MakeBatch(dataset.train, order, first, shape, 0);
      SoftmaxLoss(network.Forward(batch.x), batch, &d_logits, &loss, &correct);
      network.Backward(batch.x, d_logits);
      if (epoch == 1 && first == 0) {
        result.replicated_gradient = network.gradient.replicated;
        result.w1_gradient = network.gradient.w1;
        result.b1_gradient = network.gradient.b1;
        result.w2_gradient = network.gradient.w2;
      }
      network.Update();
    }
    result.loss.push_back(loss / static_cast<double>(order.size()));
  }
  std::vector<int> order = EpochOrder(static_cast<int>(dataset.test.size()), seed, 0);
  int correct = 0;
  double loss = 0;
  for (int first = 0; first < static_cast<int>(order.size()); first += shape.batch) {
    Batch batch = MakeBatch(dataset.test, order, first, shape, 0);
    SoftmaxLoss(network.Forward(batch.x), batch, &d_logits, &loss, &correct);
  }
  result.accuracy = static_cast<double>(correct) / static_cast<double>(dataset.test.size());
  return result;
}

}  // namespace tandem::digits
