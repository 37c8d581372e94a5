// File: reduction.h
//
// One step of a reduction, on the host and on GPUs, with the same bits.
#pragma once

#include <type_traits>

#include "tandem/op_request.h"

#ifdef __CUDACC__
#define TANDEM_HOST_DEVICE __host__ __device__
#else
#define TANDEM_HOST_DEVICE
#endif

namespace tandem {

// `a` and `b` combined by `op`. Floats are fp32; a minimum or maximum with a NaN is a NaN, so that its place
// among the ranks does not matter. Integers wrap. Bitwise reductions of floats have no meaning: the planner
// refuses them. An average's step is a sum's.
template <typename Number>
TANDEM_HOST_DEVICE inline Number Combine(ReduceOp op, Number a, Number b) {
  if constexpr (std::is_floating_point_v<Number>) {
    switch (op) {
      case ReduceOp::kMin: return a != a || a < b ? a : b;
      case ReduceOp::kMax: return a != a || a > b ? a : b;
      case ReduceOp::kProduct: return a * b;
      default: return a + b;
    }
  } else {
    // Signs matter for the order alone. Unsigned arithmetic gives the same bits, and may wrap.
    using Bits = std::make_unsigned_t<Number>;
    const Bits x = static_cast<Bits>(a), y = static_cast<Bits>(b);
    switch (op) {
      case ReduceOp::kMin: return a < b ? a : b;
      case ReduceOp::kMax: return a > b ? a : b;
      case ReduceOp::kProduct: return static_cast<Number>(x * y);
      case ReduceOp::kBitAnd: return static_cast<Number>(x & y);
      case ReduceOp::kBitOr: return static_cast<Number>(x | y);
      case ReduceOp::kBitXor: return static_cast<Number>(x ^ y);
      default: return static_cast<Number>(x + y);
    }
  }
}

// Calls `f` with the reduction as a constant, std::integral_constant<ReduceOp, …>: loops over elements then
// hold no branch. Host code.
template <typename F>
void WithReduction(ReduceOp op, F&& f) {
  using enum ReduceOp;
  switch (op) {
    case kMin: return f(std::integral_constant<ReduceOp, kMin>());
    case kMax: return f(std::integral_constant<ReduceOp, kMax>());
    case kProduct: return f(std::integral_constant<ReduceOp, kProduct>());
    case kBitAnd: return f(std::integral_constant<ReduceOp, kBitAnd>());
    case kBitOr: return f(std::integral_constant<ReduceOp, kBitOr>());
    case kBitXor: return f(std::integral_constant<ReduceOp, kBitXor>());
    default: return f(std::integral_constant<ReduceOp, kSum>());
  }
}

}  // namespace tandem
