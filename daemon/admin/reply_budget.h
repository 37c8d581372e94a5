// File: reply_budget.h
//
// `ReplyBudget`: how much of a listing goes into one reply. gRPC's clients take replies of up to 4 MiB by
// default. The bound also keeps tandemd from holding all records once for each caller.
#pragma once

#include <google/protobuf/message_lite.h>

#include <cstddef>

namespace tandem::daemon {

// Bytes of a reply's entries; the rest of the 4 MiB is for the fields beside them.
inline constexpr size_t kMaxReplyBytes = (size_t{4} << 20) - (size_t{128} << 10);
// Bytes of a trace, where the caller asks for them.
inline constexpr size_t kMaxTraceBytes = size_t{16} << 20;

// Thread rule: none; one reply's own.
class ReplyBudget {
 public:
  explicit ReplyBudget(size_t bytes) : left_(bytes) {}
  // Whether the entry fits too; once one has not, none does any more.
  bool Take(const google::protobuf::MessageLite& entry) {
    const size_t bytes = entry.ByteSizeLong() + kFraming;
    cut_ |= bytes > left_;
    if (!cut_) left_ -= bytes;
    return !cut_;
  }
  // Something has not fitted.
  bool cut() const { return cut_; }

 private:
  static constexpr size_t kFraming = 8;  // tag and length of an entry
  size_t left_;
  bool cut_ = false;
};

// Adds `entry` to the field, if it fits.
template <typename Field, typename Entry>
bool AddWithin(ReplyBudget& budget, Field* field, Entry entry) {
  if (!budget.Take(entry)) return false;
  *field->Add() = std::move(entry);
  return true;
}

}  // namespace tandem::daemon
