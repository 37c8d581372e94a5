// File: norm_launch.h
//
// The arguments of an RMSNorm as its kernel takes them.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/norm_manner.h"

namespace tandem::cuda {

// `args` have been checked (host::CheckNorm), or come from a program that was proven.
inline NormLaunch NormLaunchOf(const NormArgs& args) {
  NormLaunch launch = {};
  launch.columns = args.out.extent.back();
  launch.rows = launch.columns == 0 ? 0 : 1;
  for (size_t d = 0; d + 1 < args.out.extent.size(); ++d) launch.rows *= args.out.extent[d];
  launch.sum = args.sum.data;
  launch.weight = args.weight.data;
  launch.out = args.out.data;
  launch.epsilon = args.epsilon;
  launch.type = static_cast<uint8_t>(args.out.dtype);
  if (args.has_residual) {
    launch.residual = args.residual.data;
    launch.residual_out = args.residual_out.data;
  }
  return launch;
}

inline NormManner NormMannerOf(const NormArgs& args) {
  return {.fixed_order = args.fixed_order, .unrounded = args.unrounded};
}

}  // namespace tandem::cuda
