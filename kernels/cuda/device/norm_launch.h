// File: norm_launch.h
//
// The arguments of an RMSNorm as its kernel takes them.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/norm_manner.h"
#include "program/norm_scales.h"

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

inline NormQuantization NormQuantizationOf(const NormArgs& args) {
  NormQuantization to;
  if (!args.has_quantized) return to;
  to.out = args.quantized.data;
  if (args.has_static_scale) to.static_scale = reinterpret_cast<const float*>(args.static_scale.data);
  if (!args.has_scales) return to;
  to.scales = reinterpret_cast<float*>(args.scales.data);
  to.row_pitch = plan::RowPitchOf(args.scales).value_or(0);
  to.block_pitch = args.scales.stride.back();
  to.by_blocks = args.scales.extent.back() > 1;
  return to;
}

inline NormManner NormMannerOf(const NormArgs& args) {
  return {.fixed_order = args.fixed_order, .unrounded = args.unrounded};
}

}  // namespace tandem::cuda
