// File: change_sink.h
//
// `ChangeSink`: receives the changed records of the registry. The journal's writer is one
// (daemon/control/restart); the registry knows this interface only.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/control/base/registry_mutex.h"

namespace tandem::daemon {

struct Registry;
struct SegmentSet;

// Thread rule: under the registry's mutex.
class ChangeSink {
 public:
  virtual ~ChangeSink() = default;

  virtual void TouchSession(uint64_t id) TANDEM_REQUIRES(registry_mutex) = 0;
  virtual void TouchLaunch(uint64_t id) TANDEM_REQUIRES(registry_mutex) = 0;
  // Plans have touches of their own: a group may have thousands.
  virtual void TouchGroup(uint64_t id) TANDEM_REQUIRES(registry_mutex) = 0;
  virtual void TouchPlan(uint64_t group_id, uint64_t id) TANDEM_REQUIRES(registry_mutex) = 0;
  virtual void TouchSet(const std::shared_ptr<SegmentSet>& set) TANDEM_REQUIRES(registry_mutex) = 0;

  // Writes the touched records, before the registry's mutex is released.
  virtual void Write(const Registry& registry) TANDEM_REQUIRES(registry_mutex) = 0;
  // Later changes are not written: they belong to the end of this tandemd.
  virtual void Close() TANDEM_REQUIRES(registry_mutex) = 0;
};

}  // namespace tandem::daemon
