// File: schema_kinds.h
//
// The kinds of an op's arguments, from its schema, when the library is compiled. Knows nothing of torch.
#pragma once

#include <array>
#include <cstddef>
#include <stdexcept>
#include <string_view>

#include "client/torch/argument_kind.h"

namespace tandem::torch_ops {

// The kind of one argument, as in "Tensor?[] biases" or "int dim=0". Does not compile for a type that kernels
// do not take.
consteval ArgumentKind KindOf(std::string_view argument) {
  struct Row {
    std::string_view type;
    ArgumentKind kind;
  };
  using enum ArgumentKind;
  constexpr Row kRows[] = {
      {"Tensor", kTensor},
      {"Tensor?", kOptionalTensor},
      {"Tensor[]", kTensors},
      {"Tensor[]?", kOptionalTensors},
      {"Tensor?[]", kTensorsOrNone},
      {"int", kInt},
      {"int[]", kInts},
      {"SymInt[]?", kOptionalInts},
      {"bool", kBool},
      {"bool[]", kBools},
      {"float", kFloat},
      {"ScalarType", kType},
      {"ScalarType?", kOptionalType},
      {"ScalarType?[]", kTypesOrNone},
      {"str", kText},
  };
  if (argument == "str group_name") return kGroupName;
  const std::string_view type = argument.substr(0, argument.find(' '));
  // A tensor that is written: "Tensor(a!)".
  if (type.starts_with("Tensor(")) return type.ends_with("[]") ? kTensors : kTensor;
  for (const Row& row : kRows) {
    if (row.type == type) return row.kind;
  }
  throw std::invalid_argument("a type that no kernel takes");
}

// Arguments of a schema without its parentheses; the star before those by keyword is none.
consteval size_t CountArguments(std::string_view schema) {
  size_t count = 1;
  for (const char c : schema) count += c == ',' ? 1 : 0;
  return count - (schema.find("*, ") != std::string_view::npos ? 1 : 0);
}

// The kinds of all arguments in order. `N` is their number.
template <size_t N>
consteval std::array<ArgumentKind, N> SchemaKinds(std::string_view schema) {
  std::array<ArgumentKind, N> kinds{};
  for (ArgumentKind& kind : kinds) {
    if (schema.starts_with("*, ")) schema.remove_prefix(3);
    const size_t comma = schema.find(", ");
    kind = KindOf(schema.substr(0, comma));
    schema.remove_prefix(comma == std::string_view::npos ? schema.size() : comma + 2);
  }
  return kinds;
}

}  // namespace tandem::torch_ops
