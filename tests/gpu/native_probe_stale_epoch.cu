#include "tests/gpu/native_probes.cuh"

namespace tandem::cuda {
FusedVariant ProbedStaleEpoch() { return MakeProbedVariant<false, false, true>(); }
FewRowsVariant FewRowsProbedStaleEpoch() { return MakeProbedFewRows<false, false, true>(); }
}  // namespace tandem::cuda
