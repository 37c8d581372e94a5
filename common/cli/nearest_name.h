// File: nearest_name.h
//
// The known name that a mistyped one stands for.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tandem::cli {

// Levenshtein distance: the fewest characters to insert, remove or replace.
size_t EditDistance(std::string_view a, std::string_view b);

// Whether a word of `length` characters with `distance` mistakes still stands for another one.
constexpr bool IsNear(size_t distance, size_t length) { return distance <= (length < 9 ? 3 : length / 3); }

// The name of `names` that `name` is nearest to, or "" if none is near. Names of over 64 characters are near
// to nothing.
std::string_view NearestName(std::string_view name, std::span<const std::string> names);

// "; did you mean 'stats'?" for the nearest name, or "" if none is near.
std::string DidYouMean(std::string_view name, std::span<const std::string> names);

}  // namespace tandem::cli
