// File: tuning_views.h
//
// Tuning entries as text for people. Pure functions of the replies.
#pragma once

#include <string>

#include "tandem/admin/v1/admin.pb.h"

namespace tandem::ctl {

// One line an entry, then the files that cannot be used.
std::string TuningText(const admin::v1::ListTuningReply& reply);
// One entry with every candidate.
std::string TuningEntryText(const admin::v1::TuningEntry& entry);

}  // namespace tandem::ctl
