// File: allow_rules.h
//
// The tables [[allow]] of the configuration: which users, groups and cgroups may use which GPUs, and how much
// else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/toml/toml_parse.h"
#include "daemon/config/config.h"
#include "tandem/status.h"

namespace tandem::config {

// The text above the rules in the configuration's file.
inline constexpr std::string_view kAllowDoc =
    "Tables [[allow]] admit users to GPUs, each by any of uid, gid and cgroup (that one and all below it); "
    "gpus "
    "lists indexes and UUIDs, without it all GPUs are meant. quotas={plans=100} has quotas for these "
    "sessions instead of those of [quotas]. The first table that fits a session decides. "
    "Without any table everybody may use all GPUs; else a session that no table fits is refused.";

// The rules of the value of the key `allow`: an array of tables, which may be empty. INVALID_ARGUMENT names
// file, line and what is wrong.
Result<std::vector<AllowConfig>> ParseAllow(const toml::node& node, std::string_view file);

// `quotas` with those of the rule in their place.
QuotaConfig QuotasOf(const AllowConfig& rule, const QuotaConfig& quotas);

// The rules as tables of a TOML file, which ParseAllow gives back. Empty for no rules.
std::string PrintAllow(const std::vector<AllowConfig>& rules);

}  // namespace tandem::config
