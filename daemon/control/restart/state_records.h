// File: state_records.h
//
// Records of the registry as the journal has them, and the names that they have there. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/control/records/registry.h"
#include "tandem/state/v1/state.pb.h"
#include "tandem/status.h"

namespace tandem::daemon {

inline constexpr char kNodeKey[] = "node";
std::string SessionKey(uint64_t id);
std::string LaunchKey(uint64_t id);
std::string GroupKey(uint64_t id);
std::string PlanKey(uint64_t id);
std::string PlanUseKey(uint64_t id);
std::string SetKey(const SegmentSet& set);

// Ids are reserved in steps, so that this record seldom changes.
state::v1::Node StateOf(const Registry& registry) TANDEM_REQUIRES(registry_mutex);
// The counters that the journal keeps, and back; others are 0.
void SetCounters(const NodeCounters& counters, state::v1::Node* node);
NodeCounters CountersOf(const state::v1::Node& node);
// Without launches; registrations and channels only once the client may know of them.
state::v1::Session StateOf(const SessionRecord& session) TANDEM_REQUIRES(registry_mutex);
state::v1::Launch StateOf(uint64_t id, const LaunchRecord& launch, uint64_t session_id);
state::v1::Set StateOf(const SegmentSet& set) TANDEM_REQUIRES(registry_mutex);
// Without plans; tensors only once the clients may know of them.
state::v1::Group StateOf(const GroupRecord& group) TANDEM_REQUIRES(registry_mutex);
state::v1::Plan StateOf(uint64_t group_id, const PlanRecord& plan);
state::v1::PlanUse UseOf(const PlanRecord& plan) TANDEM_REQUIRES(registry_mutex);

// Whether the journal has the group: its members have heard of it.
bool IsKept(const GroupRecord& group) TANDEM_REQUIRES(registry_mutex);
// Equal for equal messages, whatever the order of their maps.
std::string Serialized(const google::protobuf::MessageLite& message);
// A status as the journal has it, in full.
Status FullStatusOf(const v1::StatusDetail& detail);
// The id by which the journal names a set; 0 for none.
uint64_t NameOf(const std::shared_ptr<SegmentSet>& set);

}  // namespace tandem::daemon
