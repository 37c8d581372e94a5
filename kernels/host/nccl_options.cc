#include "kernels/host/nccl_options.h"

#include <charconv>
#include <string_view>

namespace tandem {

Result<NcclOptions> ParseNcclOptions(const std::map<std::string, std::string>& options) {
  constexpr std::string_view kPrefix = "nccl.";
  NcclOptions parsed;
  std::optional<int> blocking;
  const std::map<std::string_view, std::optional<int>*> known = {
      {"nccl.min_ctas", &parsed.min_ctas},
      {"nccl.max_ctas", &parsed.max_ctas},
      {"nccl.cga_cluster_size", &parsed.cga_cluster_size},
      {"nccl.blocking", &blocking}};
  for (const auto& [key, value] : options) {
    if (key.rfind(kPrefix, 0) != 0) continue;
    auto found = known.find(key);
    if (found == known.end()) {
      return InvalidArgument(
          "there is no group option '" + key +
          "'; known are nccl.min_ctas, nccl.max_ctas, nccl.cga_cluster_size, nccl.blocking");
    }
    int number = 0;
    const char* end = value.data() + value.size();
    if (auto read = std::from_chars(value.data(), end, number);
        read.ec != std::errc() || read.ptr != end || number < 0) {
      return InvalidArgument("group option '" + key + "' is no number: '" + value + "'");
    }
    *found->second = number;
  }
  if (blocking.value_or(1) > 1) return InvalidArgument("group option 'nccl.blocking' is 0 or 1");
  parsed.blocking = blocking.value_or(1) == 1;
  return parsed;
}

}  // namespace tandem
