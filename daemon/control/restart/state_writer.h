// File: state_writer.h
//
// `StateWriter`: keeps the journal like the registry. Services name the records that they have changed; these
// are written before the registry's mutex is released, hence before anybody hears of the change.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/base/registry_mutex.h"
#include "daemon/control/records/change_sink.h"
#include "daemon/control/restart/journal.h"

namespace tandem::daemon {

// Thread rule: under the registry's mutex.
class StateWriter final : public ChangeSink {
 public:
  // Called under the registry's mutex.
  struct Reports {
    // Once the journal cannot be written any more, and so no tandemd can take over.
    std::function<void(const Status&)> failed;
    // For tests: the name of a record that is not like the registry after a write. May be empty.
    std::function<void(const std::string&)> difference;
  };
  StateWriter(Journal journal, Reports reports);

  void TouchSession(uint64_t id) override TANDEM_REQUIRES(registry_mutex) { sessions_.insert(id); }
  void TouchLaunch(uint64_t id) override TANDEM_REQUIRES(registry_mutex) { launches_.insert(id); }
  void TouchGroup(uint64_t id) override TANDEM_REQUIRES(registry_mutex) { groups_.insert(id); }
  void TouchPlan(uint64_t group_id, uint64_t id) override TANDEM_REQUIRES(registry_mutex) {
    plans_.emplace(group_id, id);
  }
  void TouchSet(const std::shared_ptr<SegmentSet>& set) override TANDEM_REQUIRES(registry_mutex) {
    sets_.insert(set);
  }

  // Writes what has been touched. The node's record is always looked at.
  void Write(const Registry& registry) override TANDEM_REQUIRES(registry_mutex);
  // All of the registry, and nothing else; after it has been restored.
  void WriteAll(const Registry& registry) TANDEM_REQUIRES(registry_mutex);
  // Nothing is written from here on: what comes is the end of this tandemd, which the next one must not see.
  void Close() override TANDEM_REQUIRES(registry_mutex) { closed_ = true; }

 private:
  // Names of records that are not like the registry: a service has not named a change.
  std::vector<std::string> Differences(const Registry& registry) const TANDEM_REQUIRES(registry_mutex);
  void WriteGroup(const Registry& registry, uint64_t id) TANDEM_REQUIRES(registry_mutex);
  void WritePlan(const Registry& registry, uint64_t group_id, uint64_t id) TANDEM_REQUIRES(registry_mutex);
  void ErasePlan(uint64_t id) TANDEM_REQUIRES(registry_mutex);

  Journal journal_;
  const Reports reports_;
  bool closed_ = false;
  std::set<uint64_t> sessions_, launches_, groups_;
  std::set<std::shared_ptr<SegmentSet>> sets_;
  std::set<std::pair<uint64_t, uint64_t>> plans_;   // group and plan
  std::map<uint64_t, std::set<uint64_t>> written_;  // groups that the journal has, and their plans
};

}  // namespace tandem::daemon
