// File: conformance_case.h
//
// A case of the conformance suite: one operation's requests with all that a run needs to be repeated exactly.
// The matrix is made from the world size and a seed alone, so every rank and the launcher have the same one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/op_request.h"

namespace tandem::conformance {

// The values of the inputs.
enum class Values : uint8_t {
  kRandom,   // uniform in [-1, 1], rounded to the dtype
  kExact,    // small integers whose sums and products every dtype represents: the result is known to the bit
  kSpecial,  // kRandom with NaN, infinities, -0 and subnormal numbers here and there
  kBits,     // any bits at all, for operations that only move them
};

struct Case {
  std::string name;  // unique, with everything: "all_reduce/two_shot bf16 [257] in_place exact +2"
  std::vector<OpRequest> requests;  // by rank
  Values values = Values::kRandom;
  // By slot: elements between a 256-byte boundary and the tensor. A slot that is not symmetric lies `skew` *
  // rank elements further on.
  std::vector<int> shift;
  int skew = 0;
  // The tensors come to more than a megabyte a rank: left out of short runs.
  bool heavy = false;
  // kAuto's choice is judged by size (choice_rule.h).
  bool judge_choice = false;
  // Why the request must be refused; empty: it must not, if its algorithm is on offer. Fused and low_latency
  // may refuse what does not fit them, but not where it must run.
  std::string refusal;
  bool must_run = false;
};

// Every case of a world size. `seed` draws the attributes that are sampled instead of crossed.
std::vector<Case> MakeMatrix(int world, uint64_t seed);

// The same numbers on every machine: draws for the matrix and for values.
class Draw {
 public:
  explicit Draw(uint64_t state) : state_(state) {}
  uint64_t Next();
  // In [0, bound).
  int Below(int bound) { return static_cast<int>(Next() % static_cast<uint64_t>(bound)); }
  bool OneIn(int count) { return Below(count) == 0; }
  template <typename T>
  const T& Of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(Below(static_cast<int>(choices.size())))];
  }

 private:
  uint64_t state_;
};
// A hash of two numbers.
uint64_t Mix(uint64_t a, uint64_t b);

// The slots that an operation writes on `rank`, and the slots that it reads.
bool IsOutput(const OpRequest& request, int slot, int rank);
bool IsInput(const OpRequest& request, int slot, int rank);
// The slot that holds the bytes of `slot`.
int Holder(const OpRequest& request, int slot);
// The slot's tensor with its strides, if it is a part of another (PartSlot) also where the request leaves
// them out.
TensorSpec SpecOf(const OpRequest& request, int slot);
// -1 if the request has no such role.
int FindSlot(const OpRequest& request, Role role, int nth = 0);
// The dimension counted from the front, of a tensor with `dims` dimensions.
int FrontDim(const OpRequest& request, size_t dims);
int64_t CountOf(const std::vector<int64_t>& shape);
// True for operations that move bytes and never compute.
bool OnlyMoves(Op op);
// True if the output is the norm of a sum.
bool HasNorm(const OpRequest& request);
// True for outputs that are the same on all ranks.
bool IsReplicated(const OpRequest& request, int slot);

}  // namespace tandem::conformance
