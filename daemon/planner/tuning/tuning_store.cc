#include "daemon/planner/tuning/tuning_store.h"

#include <algorithm>
#include <filesystem>
#include <utility>

namespace tandem::daemon {

using plan::TuningEntry;
using plan::TuningTable;

TuningStore::TuningStore(std::string state_file, const std::string& shipped_dir)
    : state_file_(std::move(state_file)) {
  std::error_code error;
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator it(shipped_dir, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".toml") files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    Result<TuningTable> table = LoadTuning(file);
    if (table.ok()) {
      shipped_.Merge(*table);
    } else {
      refused_.push_back(table.status().message());
    }
  }
  Result<TuningTable> own = LoadTuning(state_file_);
  if (own.ok()) {
    own_ = *std::move(own);
  } else if (own.status().code() != Code::kNotFound) {
    own_refused_ = true;
    const Status aside = SetAside();
    refused_.push_back(own.status().message() +
                       (aside.ok() ? "; it is " + state_file_ + ".refused now" : "; " + aside.message()));
  }
  TuningTable merged = shipped_;
  merged.Merge(own_);
  merged_ = std::make_shared<const TuningTable>(std::move(merged));
}

std::shared_ptr<const TuningTable> TuningStore::Snapshot() const {
  std::lock_guard lock(mutex_);
  return merged_;
}

std::vector<std::string> TuningStore::refused() const {
  std::lock_guard lock(mutex_);
  return refused_;
}

Status TuningStore::SetAside() {
  if (!own_refused_) return Status::Ok();
  std::error_code error;
  std::filesystem::rename(state_file_, state_file_ + ".refused", error);
  if (error) return Unavailable("cannot set the refused " + state_file_ + " aside: " + error.message());
  own_refused_ = false;
  return Status::Ok();
}

Status TuningStore::ReplaceLocked(TuningTable own, size_t most) {
  TANDEM_RETURN_IF_ERROR(SetAside());
  TANDEM_RETURN_IF_ERROR(SaveTuning(state_file_, own, most));
  own_ = std::move(own);
  TuningTable merged = shipped_;
  merged.Merge(own_);
  merged_ = std::make_shared<const TuningTable>(std::move(merged));
  std::erase_if(wanted_, [this](const WantedTuning& wanted) {
    return merged_->Find(wanted.entry.key, wanted.entry.shape) != nullptr;
  });
  return Status::Ok();
}

void TuningStore::Want(WantedTuning wanted) {
  std::lock_guard lock(mutex_);
  for (WantedTuning& known : wanted_) {
    if (known.entry.key != wanted.entry.key || known.entry.shape != wanted.entry.shape) continue;
    ++known.plans;
    return;
  }
  // The time may have come in since the plan was made.
  if (wanted_.size() >= kMaxWantedTuning || merged_->Find(wanted.entry.key, wanted.entry.shape) != nullptr)
    return;
  wanted_.push_back(std::move(wanted));
}

std::vector<WantedTuning> TuningStore::Wanted() const {
  std::lock_guard lock(mutex_);
  std::vector<WantedTuning> wanted = wanted_;
  std::stable_sort(wanted.begin(), wanted.end(),
                   [](const auto& a, const auto& b) { return a.plans > b.plans; });
  return wanted;
}

Status TuningStore::Put(TuningEntry entry, size_t most) {
  entry.source = state_file_;
  std::lock_guard lock(mutex_);
  TuningTable own = own_;
  own.Put(std::move(entry));
  return ReplaceLocked(std::move(own), most);
}

Result<size_t> TuningStore::Forget(const std::string& id) {
  std::lock_guard lock(mutex_);
  TuningTable own = own_;
  if (!own.Remove(id)) {
    const TuningEntry* shipped = shipped_.FindId(id);
    if (shipped == nullptr) return NotFound("there is no tuning entry " + id);
    return FailedPrecondition("entry " + id + " comes with Tandem, in " + shipped->source +
                              ": measure this shape here, and that goes before it");
  }
  TANDEM_RETURN_IF_ERROR(ReplaceLocked(std::move(own)));
  return size_t{1};
}

Result<size_t> TuningStore::ForgetAll() {
  std::lock_guard lock(mutex_);
  const size_t count = own_.size();
  if (count == 0) return count;
  TANDEM_RETURN_IF_ERROR(ReplaceLocked({}));
  return count;
}

}  // namespace tandem::daemon
