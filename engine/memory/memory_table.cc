#include "engine/memory/memory_table.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "common/digest.h"

namespace tandem::engine {
namespace {

std::string SlotName(size_t slot) { return "operand " + std::to_string(slot); }

}  // namespace

Status MemoryTable::AddSegment(uint64_t id, int fd, uint64_t bytes) {
  if (segments_.contains(id)) return AlreadyExists("segment " + std::to_string(id) + " is mapped already");
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Segment> segment, backend_->MapSegment(fd, bytes));
  segments_.emplace(id, std::move(segment));
  return Status::Ok();
}

Status MemoryTable::RemoveSegment(uint64_t id) {
  return segments_.erase(id) == 1 ? Status::Ok() : NotFound("no segment " + std::to_string(id));
}

Result<std::byte*> MemoryTable::Locate(uint64_t segment_id, uint64_t offset, uint64_t bytes,
                                       std::vector<std::shared_ptr<Segment>>* pins) const {
  auto found = segments_.find(segment_id);
  if (found == segments_.end()) return NotFound("no segment " + std::to_string(segment_id));
  size_t size = found->second->bytes();
  if (offset > size || bytes > size - offset) {
    return OutOfRange("bytes [" + std::to_string(offset) + ", +" + std::to_string(bytes) +
                      ") leave segment " + std::to_string(segment_id) + " of " + std::to_string(size) +
                      " bytes");
  }
  pins->push_back(found->second);
  return found->second->data() + offset;
}

Status MemoryTable::AddSymmetric(uint64_t id, uint64_t owner_session, uint64_t group_id, uint64_t bytes,
                                 const std::vector<uint64_t>& segments,
                                 const std::vector<uint64_t>& offsets) {
  if (segments.size() != offsets.size() || segments.empty() || segments.size() > plan::kMaxWorldSize) {
    return InvalidArgument("a symmetric registration has a segment and an offset for each of 1 to 8 ranks");
  }
  auto registration = std::make_shared<Registration>();
  registration->identity = kDigestSeed;
  for (size_t rank = 0; rank < segments.size(); ++rank) {
    TANDEM_ASSIGN_OR_RETURN(std::byte * base,
                            Locate(segments[rank], offsets[rank], bytes, &registration->pins));
    registration->bases.push_back(base);
    registration->identity = FoldDigest(FoldDigest(registration->identity, segments[rank]), offsets[rank]);
  }
  registration->id = id;
  registration->owner_session = owner_session;
  registration->group_id = group_id;
  registration->bytes = bytes;
  registration->symmetric = true;
  return AddRegistration(std::move(registration));
}

Status MemoryTable::AddChunks(uint64_t id, std::vector<UniqueFd> fds) {
  std::vector<UniqueFd>& held = arriving_[id];
  std::move(fds.begin(), fds.end(), std::back_inserter(held));
  return Status::Ok();
}

Status MemoryTable::AddForeign(uint64_t id, uint64_t owner_session, uint64_t bytes, std::vector<UniqueFd> fds,
                               const std::vector<uint64_t>& chunk_bytes, uint64_t offset) {
  if (auto ahead = arriving_.extract(id)) {
    std::vector<UniqueFd> all = std::move(ahead.mapped());
    std::move(fds.begin(), fds.end(), std::back_inserter(all));
    fds = std::move(all);
  }
  if (fds.empty() || fds.size() != chunk_bytes.size()) {
    return InvalidArgument("a registration of own memory has one descriptor for each chunk");
  }
  uint64_t total = 0;
  for (uint64_t chunk : chunk_bytes) {
    if (__builtin_add_overflow(total, chunk, &total)) return InvalidArgument("chunks overflow");
  }
  if (offset > chunk_bytes[0]) return InvalidArgument("the memory does not begin in the first chunk");
  if (total - offset < bytes) return InvalidArgument("the chunks have fewer bytes than the registration");
  auto registration = std::make_shared<Registration>();
  std::vector<int> raw;
  raw.reserve(fds.size());
  for (const UniqueFd& fd : fds) raw.push_back(fd.get());
  auto together = backend_->ImportChunks(raw, chunk_bytes);
  if (together.ok()) {
    registration->chunks.push_back({.base = (*together)->data(), .begin = 0, .bytes = total});
    registration->pins.push_back(std::move(*together));
  } else if (together.status().code() != Code::kUnimplemented) {
    return together.status();
  }
  uint64_t begin = 0;
  for (size_t i = 0; !together.ok() && i < fds.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, backend_->ImportMemory(raw[i], chunk_bytes[i]));
    registration->chunks.push_back({.base = segment->data(), .begin = begin, .bytes = chunk_bytes[i]});
    registration->pins.push_back(std::move(segment));
    begin += chunk_bytes[i];
  }
  registration->origin = offset;
  registration->id = id;
  registration->owner_session = owner_session;
  registration->bytes = bytes;
  return AddRegistration(std::move(registration));
}

Status MemoryTable::AddIpc(uint64_t id, uint64_t owner_session, uint64_t bytes, const std::string& handle,
                           uint64_t offset) {
  if (dead_->crowded())
    return ResourceExhausted("closed imports cannot be released, because the lanes are never idle");
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Segment> opened, backend_->ImportIpc(handle, offset, bytes));
  std::shared_ptr<Segment> segment;
  if (opened->ReleaseBlocks()) {
    segment = std::shared_ptr<Segment>(opened.release(), [dead = dead_](Segment* closed) {
      dead->Add([owned = std::shared_ptr<Segment>(closed)](Backend*) {});
    });
  } else {
    segment = std::move(opened);
  }
  // Refused once it is in the hands of what closes it while no lane holds work.
  if (segment->bytes() < bytes) {
    return OutOfRange("the allocation behind the IPC handle has " + std::to_string(segment->bytes()) +
                      " bytes from " + std::to_string(offset) + " on; [" + std::to_string(offset) + ", +" +
                      std::to_string(bytes) + ") leaves it");
  }
  auto registration = std::make_shared<Registration>();
  registration->chunks.push_back({.base = segment->data(), .begin = 0, .bytes = bytes});
  registration->pins.push_back(std::move(segment));
  registration->id = id;
  registration->owner_session = owner_session;
  registration->bytes = bytes;
  return AddRegistration(std::move(registration));
}

Status MemoryTable::AddRegistration(std::shared_ptr<Registration> registration) {
  uint64_t id = registration->id;
  if (!registrations_.emplace(id, std::move(registration)).second) {
    return AlreadyExists("registration " + std::to_string(id) + " exists already");
  }
  return Status::Ok();
}

Status MemoryTable::RemoveRegistration(uint64_t id) {
  return registrations_.erase(id) == 1 ? Status::Ok() : NotFound("no registration " + std::to_string(id));
}

Status MemoryTable::ResolveSlot(const LaunchBinding& binding, const SlotRule& rule, const BindingScope& scope,
                                const Registration& registration, runtime::SlotAddress* address) const {
  // Written so that no sum can overflow.
  if (binding.offset > registration.bytes || rule.span_bytes > registration.bytes - binding.offset) {
    return OutOfRange("needs " + std::to_string(rule.span_bytes) + " bytes from offset " +
                      std::to_string(binding.offset) + ", the memory has " +
                      std::to_string(registration.bytes));
  }
  if (registration.symmetric) {
    for (size_t rank = 0; rank < registration.bases.size(); ++rank) {
      address->peer[rank] = registration.bases[rank] + binding.offset;
    }
    if (static_cast<size_t>(scope.rank) >= registration.bases.size())
      return Internal("a rank without memory");
    address->own = address->peer[static_cast<size_t>(scope.rank)];
  } else {
    uint64_t position = registration.origin + binding.offset;
    for (const Registration::Chunk& chunk : registration.chunks) {
      if (position < chunk.begin || position - chunk.begin > chunk.bytes) continue;
      uint64_t inside = position - chunk.begin;
      if (rule.span_bytes <= chunk.bytes - inside) address->own = chunk.base + inside;
    }
    if (address->own == nullptr) return OutOfRange("straddles two chunks of its registration");
  }
  if (rule.alignment > 1 && reinterpret_cast<uintptr_t>(address->own) % rule.alignment != 0) {
    return InvalidArgument("offset " + std::to_string(binding.offset) + " is not aligned to " +
                           std::to_string(rule.alignment) + " bytes");
  }
  return Status::Ok();
}

Status MemoryTable::Resolve(std::span<const LaunchBinding> bindings, const std::vector<SlotRule>& rules,
                            const BindingScope& scope, std::vector<runtime::SlotAddress>* addresses,
                            std::vector<std::shared_ptr<Registration>>* pins, uint64_t* digest) const {
  addresses->assign(rules.size(), runtime::SlotAddress{});
  pins->clear();
  if (bindings.size() != rules.size()) {
    return InvalidArgument("the launch binds " + std::to_string(bindings.size()) +
                           " operands, the plan has " + std::to_string(rules.size()));
  }
  for (size_t slot = 0; slot < rules.size(); ++slot) {
    const SlotRule& rule = rules[slot];
    const LaunchBinding& binding = bindings[slot];
    if (binding.registration_id == 0) {
      if (rule.span_bytes == 0) continue;
      return InvalidArgument(SlotName(slot) + " is not bound");
    }
    if (rule.alias_of >= 0 && static_cast<size_t>(rule.alias_of) < slot) {
      const LaunchBinding& target = bindings[static_cast<size_t>(rule.alias_of)];
      if (target.registration_id != binding.registration_id || target.offset != binding.offset) {
        return InvalidArgument(SlotName(slot) + " must be bound like " +
                               SlotName(static_cast<size_t>(rule.alias_of)));
      }
    }
    auto found = registrations_.find(binding.registration_id);
    bool visible = found != registrations_.end() &&
                   (found->second->owner_session == scope.session_id ||
                    (found->second->symmetric && found->second->group_id == scope.group_id));
    if (!visible) {
      return NotFound(SlotName(slot) + ": no registration " + std::to_string(binding.registration_id));
    }
    const std::shared_ptr<Registration>& registration = found->second;
    if (rule.symmetric && (!registration->symmetric || registration->group_id != scope.group_id)) {
      return InvalidArgument(SlotName(slot) + " needs a symmetric tensor of the plan's group");
    }
    Status resolved = ResolveSlot(binding, rule, scope, *registration, &(*addresses)[slot]);
    if (!resolved.ok()) return resolved.WithContext(SlotName(slot));
    pins->push_back(registration);
    if (rule.symmetric) *digest = FoldDigest(FoldDigest(*digest, registration->identity), binding.offset);
  }
  return Status::Ok();
}

}  // namespace tandem::engine
