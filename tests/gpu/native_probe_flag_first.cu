#include "tests/gpu/native_probes.cuh"

namespace tandem::cuda {
FusedVariant ProbedFlagFirst() { return MakeProbedVariant<true, false, false>(); }
FewRowsVariant FewRowsProbedFlagFirst() { return MakeProbedFewRows<true, false, false>(); }
}  // namespace tandem::cuda
