#include "tests/conformance/reference_norm.h"

#include <algorithm>
#include <cmath>

namespace tandem::conformance {
namespace {

std::vector<double> InputOf(const OpRequest& request, const std::vector<std::vector<std::byte>>& inputs,
                            Role role) {
  const int slot = FindSlot(request, role);
  if (slot < 0) return {};
  return ToDoubles(inputs[static_cast<size_t>(slot)], request.operands[static_cast<size_t>(slot)].spec.dtype);
}

double NormOf(const std::vector<double>& values, size_t first, size_t count) {
  double squares = 0;
  for (size_t i = first; i < first + count; ++i) squares += values[i] * values[i];
  return std::sqrt(squares);
}

// The errors of a row's elements make an error of the row's root mean square, which all elements get. By
// Cauchy-Schwarz it is at most the norm of the errors to that of the row.
void NormMagnitudes(std::vector<double>* magnitudes, const std::vector<double>& row, size_t first,
                    const std::vector<double>& weights, double root) {
  const size_t columns = weights.size();
  const double norm = NormOf(row, first, columns);
  const double of_root = norm > 0 ? NormOf(*magnitudes, first, columns) / norm : 0;
  for (size_t i = 0; i < columns; ++i) {
    double& magnitude = (*magnitudes)[first + i];
    magnitude = (magnitude + std::fabs(row[first + i]) * of_root) * std::fabs(weights[i]) / root;
  }
}

}  // namespace

Expected NormReference(const OpRequest& request, const std::vector<std::vector<std::byte>>& inputs, int slot,
                       Expected sum) {
  const std::vector<double> weights = InputOf(request, inputs, Role::kNormWeight),
                            residual = InputOf(request, inputs, Role::kResidual);
  for (size_t i = 0; i < sum.values.size() && !residual.empty(); ++i) {
    const double added = residual[sum.elements.empty() ? i : static_cast<size_t>(sum.elements[i])];
    sum.values[i] += added;
    sum.parts[i] += std::fabs(added);
    sum.terms[i] += std::fabs(added);
  }
  if (request.operands[static_cast<size_t>(slot)].role == Role::kResidualOutput) return sum;
  const size_t columns = weights.size();
  for (size_t first = 0; first < sum.values.size(); first += columns) {
    const double norm = NormOf(sum.values, first, columns);
    const double root =
        std::sqrt(norm * norm / static_cast<double>(columns) + static_cast<double>(request.norm_epsilon));
    NormMagnitudes(&sum.parts, sum.values, first, weights, root);
    NormMagnitudes(&sum.terms, sum.values, first, weights, root);
    for (size_t i = 0; i < columns; ++i) sum.values[first + i] *= weights[i] / root;
  }
  return sum;
}

std::string WrongQuantization(const OpRequest& request, const std::vector<std::vector<std::byte>>& inputs,
                              const std::vector<std::vector<std::byte>>& outputs) {
  const auto of = [&request](int slot) { return request.operands[static_cast<size_t>(slot)].spec; };
  const int c = FindSlot(request, Role::kC), out = c >= 0 ? c : FindSlot(request, Role::kOutput);
  const int given = FindSlot(request, Role::kStaticScale), made = FindSlot(request, Role::kScaleOutput);
  const auto& quantized = outputs[static_cast<size_t>(FindSlot(request, Role::kQuantizedOutput))];
  const std::vector<std::byte>& normed = outputs[static_cast<size_t>(out)];
  const auto columns = static_cast<size_t>(of(out).shape.back());
  const size_t blocks = made < 0 ? 1 : static_cast<size_t>(of(made).shape.back());
  const size_t length = blocks == 1 ? columns : 128;
  const auto differ = [](float a, float b) { return !(a == b || (std::isnan(a) && std::isnan(b))); };
  for (size_t i = 0, part = 0; i < quantized.size(); ++part) {
    const size_t end = std::min(i + length, (i / columns + 1) * columns);
    float scale = 0, most = 1.0f / 512;
    for (size_t k = i; k < end; ++k) {
      const float magnitude = std::fabs(LoadAsFloat(normed.data(), of(out).dtype, k));
      if (magnitude > most || std::isnan(magnitude)) most = magnitude;
      if (std::isnan(magnitude)) break;
    }
    if (made < 0) {
      scale = LoadAsFloat(inputs[static_cast<size_t>(given)].data(), DType::kF32, 0);
    } else {
      scale = LoadAsFloat(outputs[static_cast<size_t>(made)].data(), DType::kF32, part);
      if (differ(scale, most / 448)) return "scale " + std::to_string(part) + " is " + std::to_string(scale);
    }
    for (; i < end; ++i) {
      std::byte wanted[1];
      StoreFromFloat(wanted, DType::kF8E4M3, 0, LoadAsFloat(normed.data(), of(out).dtype, i) / scale);
      const float want = LoadAsFloat(wanted, DType::kF8E4M3, 0);
      const float have = LoadAsFloat(quantized.data(), DType::kF8E4M3, i);
      if (differ(have, want))
        return "element " + std::to_string(i) + " is " + std::to_string(have) + ", must be " +
               std::to_string(want);
    }
  }
  return "";
}

}  // namespace tandem::conformance
