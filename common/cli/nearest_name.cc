#include "common/cli/nearest_name.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace tandem::cli {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string_view NearestName(std::string_view name, std::span<const std::string> names) {
  constexpr size_t kLongest = 64;
  if (name.size() > kLongest) return "";
  std::string_view nearest;
  size_t best = std::numeric_limits<size_t>::max();
  for (const std::string& known : names) {
    const size_t distance = EditDistance(name, known);
    if (distance >= best || distance >= known.size()) continue;
    best = distance;
    nearest = known;
  }
  return nearest.empty() || !IsNear(best, name.size()) ? std::string_view() : nearest;
}

std::string DidYouMean(std::string_view name, std::span<const std::string> names) {
  const std::string_view nearest = NearestName(name, names);
  return nearest.empty() ? "" : "; did you mean '" + std::string(nearest) + "'?";
}

}  // namespace tandem::cli
