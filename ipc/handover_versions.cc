#include "ipc/handover_versions.h"

#include <sstream>

#include "common/protocol.h"
#include "ipc/channel_layout.h"

namespace tandem {
namespace {

// One text, so that a program's file shows its versions. Each goes up by one where a side of the last version
// would misunderstand; a field that such a side may pass over needs no new version.
constexpr char kVersions[] = "tandem-handover state=2 commands=1 program=5 records=1";

std::string NumberOf(const std::map<std::string, uint32_t>& versions, const std::string& name) {
  const auto found = versions.find(name);
  return found == versions.end() ? "not known" : std::to_string(found->second);
}

}  // namespace

std::map<std::string, uint32_t> HandoverVersions() {
  std::map<std::string, uint32_t> versions = {{"channel", kChannelVersion}, {"protocol", kProtocol}};
  std::istringstream words(kVersions);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos)
      versions[word.substr(0, equals)] = static_cast<uint32_t>(std::stoul(word.substr(equals + 1)));
  }
  return versions;
}

std::string HandoverDifferences(const std::map<std::string, uint32_t>& theirs,
                                const std::map<std::string, uint32_t>& ours) {
  std::map<std::string, uint32_t> all = ours;
  all.insert(theirs.begin(), theirs.end());
  std::string differences;
  for (const auto& [name, number] : all) {
    const std::string there = NumberOf(theirs, name), here = NumberOf(ours, name);
    if (there == here) continue;
    differences += (differences.empty() ? "" : "; ") + name + " is " + there + ", tandemd's is " + here;
  }
  return differences;
}

}  // namespace tandem
