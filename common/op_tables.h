// File: op_tables.h
//
// The rows of ops.def as tables of C++: the names and the range of each enumeration of a request. For checks,
// parsers and loops over all values, so that none of them names a first or a last value. Constant data; any
// thread may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/op_request.h"

namespace tandem {

template <typename Enum>
struct NamedValue {
  Enum value;
  std::string_view name;
};

namespace op_tables {

#define TANDEM_DTYPE(constant, name, value) {DType::constant, #name},
inline constexpr NamedValue<DType> kDTypes[] = {
#include "common/ops.def"
};
#define TANDEM_OP(constant, name, value) {Op::constant, #name},
inline constexpr NamedValue<Op> kOps[] = {
#include "common/ops.def"
};
#define TANDEM_REDUCE_OP(constant, name, value) {ReduceOp::constant, #name},
inline constexpr NamedValue<ReduceOp> kReduceOps[] = {
#include "common/ops.def"
};
#define TANDEM_WIRE_TYPE(constant, name, value) {WireType::constant, #name},
inline constexpr NamedValue<WireType> kWireTypes[] = {
#include "common/ops.def"
};
#define TANDEM_ON_UNFUSED(constant, name, value) {OnUnfused::constant, #name},
inline constexpr NamedValue<OnUnfused> kOnUnfused[] = {
#include "common/ops.def"
};
#define TANDEM_ON_SLOW_PLACEMENT(constant, name, value) {OnSlowPlacement::constant, #name},
inline constexpr NamedValue<OnSlowPlacement> kOnSlowPlacement[] = {
#include "common/ops.def"
};
#define TANDEM_PLAN_PLACEMENT(constant, name, value) {PlanPlacement::constant, #name},
inline constexpr NamedValue<PlanPlacement> kPlanPlacements[] = {
#include "common/ops.def"
};
#define TANDEM_DETERMINISM(constant, name, value) {Determinism::constant, #name},
inline constexpr NamedValue<Determinism> kDeterminisms[] = {
#include "common/ops.def"
};
#define TANDEM_ROUNDING(constant, name, value) {Rounding::constant, #name},
inline constexpr NamedValue<Rounding> kRoundings[] = {
#include "common/ops.def"
};
#define TANDEM_ALGORITHM(constant, name, value) {Algorithm::constant, #name},
inline constexpr NamedValue<Algorithm> kAlgorithms[] = {
#include "common/ops.def"
};
#define TANDEM_ROLE(constant, name, value) {Role::constant, #name},
inline constexpr NamedValue<Role> kRoles[] = {
#include "common/ops.def"
};

}  // namespace op_tables

// All values of an enumeration with their names, in ascending order and without gaps.
template <typename Enum>
inline constexpr std::span<const NamedValue<Enum>> kNamedValues;
template <>
inline constexpr std::span<const NamedValue<DType>> kNamedValues<DType> = op_tables::kDTypes;
template <>
inline constexpr std::span<const NamedValue<Op>> kNamedValues<Op> = op_tables::kOps;
template <>
inline constexpr std::span<const NamedValue<ReduceOp>> kNamedValues<ReduceOp> = op_tables::kReduceOps;
template <>
inline constexpr std::span<const NamedValue<WireType>> kNamedValues<WireType> = op_tables::kWireTypes;
template <>
inline constexpr std::span<const NamedValue<OnUnfused>> kNamedValues<OnUnfused> = op_tables::kOnUnfused;
template <>
inline constexpr std::span<const NamedValue<OnSlowPlacement>> kNamedValues<OnSlowPlacement> =
    op_tables::kOnSlowPlacement;
template <>
inline constexpr std::span<const NamedValue<PlanPlacement>> kNamedValues<PlanPlacement> =
    op_tables::kPlanPlacements;
template <>
inline constexpr std::span<const NamedValue<Determinism>> kNamedValues<Determinism> =
    op_tables::kDeterminisms;
template <>
inline constexpr std::span<const NamedValue<Rounding>> kNamedValues<Rounding> = op_tables::kRoundings;
template <>
inline constexpr std::span<const NamedValue<Algorithm>> kNamedValues<Algorithm> = op_tables::kAlgorithms;
template <>
inline constexpr std::span<const NamedValue<Role>> kNamedValues<Role> = op_tables::kRoles;

// The table's entry for a number that came from elsewhere; null: the enumeration has no such value.
template <typename Enum>
constexpr const NamedValue<Enum>* FindValue(int64_t number) {
  const auto first = static_cast<int64_t>(kNamedValues<Enum>.front().value);
  const bool listed = number >= first && number - first < std::ssize(kNamedValues<Enum>);
  return listed ? &kNamedValues<Enum>[static_cast<size_t>(number - first)] : nullptr;
}
template <typename Enum>
constexpr bool IsListed(Enum value) {
  return FindValue<Enum>(static_cast<int64_t>(value)) != nullptr;
}

// "unknown" for a value that is not listed.
template <typename Enum>
constexpr std::string_view NameOf(Enum value) {
  const NamedValue<Enum>* found = FindValue<Enum>(static_cast<int64_t>(value));
  return found != nullptr ? found->name : "unknown";
}

template <typename Enum>
constexpr std::optional<Enum> ValueOf(std::string_view name) {
  for (const NamedValue<Enum>& entry : kNamedValues<Enum>) {
    if (entry.name == name) return entry.value;
  }
  return std::nullopt;
}

// True for reductions of bits, which floats do not have.
constexpr bool IsBitwise(ReduceOp op) {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
}

template <typename Enum>
std::vector<std::string> NamesOf() {
  std::vector<std::string> names;
  for (const NamedValue<Enum>& entry : kNamedValues<Enum>) names.emplace_back(entry.name);
  return names;
}
// "allow, warn, error".
template <typename Enum>
std::string ListedNames() {
  std::string text;
  for (const NamedValue<Enum>& entry : kNamedValues<Enum>) {
    text.append(text.empty() ? "" : ", ").append(entry.name);
  }
  return text;
}

// FindValue counts from the first value.
template <typename Enum>
constexpr bool HasNoGaps() {
  for (const NamedValue<Enum>& entry : kNamedValues<Enum>) {
    if (FindValue<Enum>(static_cast<int64_t>(entry.value)) != &entry) return false;
  }
  return true;
}
static_assert(HasNoGaps<DType>() && HasNoGaps<Op>() && HasNoGaps<ReduceOp>() && HasNoGaps<WireType>());
static_assert(HasNoGaps<OnUnfused>() && HasNoGaps<OnSlowPlacement>() && HasNoGaps<PlanPlacement>());
static_assert(HasNoGaps<Determinism>() && HasNoGaps<Rounding>() && HasNoGaps<Algorithm>());
static_assert(HasNoGaps<Role>());
// element_type.h has the range of its own, for device code.
static_assert(IsValid(kNamedValues<DType>.back().value) &&
              !IsValid(static_cast<DType>(kNamedValues<DType>.size())));

}  // namespace tandem
