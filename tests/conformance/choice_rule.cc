#include "tests/conformance/choice_rule.h"

#include <utility>

namespace tandem::conformance {

Algorithm AllReduceChoice(const plan::Bounds& bounds, uint64_t bytes,
                          const std::function<bool(Algorithm)>& on_offer) {
  for (auto [algorithm, bound] : {std::pair{Algorithm::kLowLatency, bounds.low_latency},
                                  {Algorithm::kOneShot, bounds.one_shot},
                                  {Algorithm::kTwoShot, bounds.two_shot}}) {
    if (bytes <= bound && on_offer(algorithm)) return algorithm;
  }
  return on_offer(Algorithm::kNccl) ? Algorithm::kNccl : Algorithm::kTwoShot;
}

}  // namespace tandem::conformance
