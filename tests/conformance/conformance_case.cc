#include "tests/conformance/conformance_case.h"

namespace tandem::conformance {

uint64_t Mix(uint64_t a, uint64_t b) {  // splitmix64's finaliser
  uint64_t z = a * 0x9e3779b97f4a7c15u + b + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t Draw::Next() {
  state_ += 0x9e3779b97f4a7c15u;
  return Mix(state_, 0);
}

bool IsOutput(const OpRequest& request, int slot, int rank) {
  if (request.op == Op::kReduce && rank != request.root) return false;
  return tandem::IsOutput(request.operands[slot].role);
}

bool IsInput(const OpRequest& request, int slot, int rank) {
  const Role role = request.operands[slot].role;
  if (request.op == Op::kBroadcast) return role == Role::kInput && rank == request.root;
  return !tandem::IsOutput(role);
}

int Holder(const OpRequest& request, int slot) {
  const int alias = request.operands[slot].alias_of;
  return alias >= 0 ? alias : slot;
}

TensorSpec SpecOf(const OpRequest& request, int slot) {
  TensorSpec spec = request.operands[static_cast<size_t>(slot)].spec;
  if (slot == PartSlot(request)) spec.strides = StridesOf(request, slot);
  return spec;
}

int FindSlot(const OpRequest& request, Role role, int nth) {
  for (size_t slot = 0; slot < request.operands.size(); ++slot) {
    if (request.operands[slot].role == role && nth-- == 0) return static_cast<int>(slot);
  }
  return -1;
}

int FrontDim(const OpRequest& request, size_t dims) {
  return request.dim < 0 ? request.dim + static_cast<int>(dims) : request.dim;
}

int64_t CountOf(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

bool OnlyMoves(Op op) {
  return op == Op::kAllGather || op == Op::kBroadcast || op == Op::kAllToAll || op == Op::kSendReceive;
}

bool HasNorm(const OpRequest& request) { return FindSlot(request, Role::kNormWeight) >= 0; }

bool IsReplicated(const OpRequest& request, int slot) {
  if (HasNorm(request)) return false;  // each rank has its own residual and weights
  switch (request.op) {
    case Op::kAllReduce:
    case Op::kAllGather:
    case Op::kBroadcast:
    case Op::kMatmulAllReduce: return true;
    case Op::kAllGatherMatmul: return request.operands[slot].role == Role::kGatheredA;
    default: return false;
  }
}

}  // namespace tandem::conformance
