// File: tuning_views.h
//
// Tuning entries as text for people. Pure functions of the replies.
#pragma once

#include <string>

#include "tandem/admin/v1/admin.pb.h"

namespace tandem::ctl {

// One line an entry, then the files that cannot be used.
std::string TuningText(const admin::v1::ListTuningReply& reply);
// The requests that plans were made for without a time, one a line.
std::string WantedText(const admin::v1::ListTuningReply& reply);
// "all_gather_matmul 8192x3584x8192, bf16 x bf16 -> bf16, 4 ranks".
std::string WantedName(const admin::v1::WantedTuning& wanted);
// One entry with every candidate.
std::string TuningEntryText(const admin::v1::TuningEntry& entry);

}  // namespace tandem::ctl
