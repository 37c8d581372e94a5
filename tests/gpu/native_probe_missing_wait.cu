#include "tests/gpu/native_probes.cuh"

namespace tandem::cuda {
FusedVariant ProbedMissingWait() { return MakeProbedVariant<false, true, false>(); }
FewRowsVariant FewRowsProbedMissingWait() { return MakeProbedFewRows<false, true, false>(); }
}  // namespace tandem::cuda
