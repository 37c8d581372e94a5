#include "ipc/arrival_table.h"

namespace tandem {
namespace {

constexpr uint64_t kArrivalMagic = 0x54444d4152525634;  // "TDMARRV4"

}  // namespace

Result<UniqueFd> CreateArrivalTable(int world_size, uint32_t max_plans) {
  if (world_size < 1 || world_size > 8) return InvalidArgument("an arrival table has 1 to 8 ranks");
  if (max_plans < 1 || max_plans > (1u << 20)) return InvalidArgument("an arrival table has 1 to 2^20 rows");
  TANDEM_ASSIGN_OR_RETURN(UniqueFd fd,
                          CreateSealedMemfd("tandem-arrivals", ArrivalTable::Bytes(world_size, max_plans)));
  TANDEM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), 0, sizeof(ArrivalTable::Header), true));
  ArrivalTable::Header* header = mapping.As<ArrivalTable::Header>();
  header->magic.store(kArrivalMagic);
  header->world_size.store(static_cast<uint32_t>(world_size));
  header->max_plans.store(max_plans);
  return fd;
}

Result<ArrivalTable> ArrivalTable::Map(int fd, int world_size) {
  TANDEM_RETURN_IF_ERROR(CheckForeignMemfd(fd, sizeof(Header)));
  TANDEM_ASSIGN_OR_RETURN(size_t bytes, FileSize(fd));
  ArrivalTable table;
  TANDEM_ASSIGN_OR_RETURN(table.mapping_, Mapping::Map(fd, 0, bytes, true));
  const Header* header = table.mapping_.As<Header>();
  table.world_size_ = world_size;
  table.max_plans_ = header->max_plans.load();
  if (header->magic.load() != kArrivalMagic ||
      header->world_size.load() != static_cast<uint32_t>(world_size) ||
      bytes < Bytes(world_size, table.max_plans_)) {
    return InvalidArgument("the descriptor is not an arrival table of " + std::to_string(world_size) +
                           " ranks");
  }
  return table;
}

void ArrivalTable::Arrive(uint32_t plan_index, int rank, uint64_t digest, uint64_t count) {
  Cell* own = cell(plan_index, rank);
  own->digest.store(digest, std::memory_order_relaxed);
  // Sequentially consistent together with Count: the store is visible to all before this engine reads the
  // others.
  own->count.store(count, std::memory_order_seq_cst);
}

uint64_t ArrivalTable::Count(uint32_t plan_index, int rank) const {
  return cell(plan_index, rank)->count.load(std::memory_order_seq_cst);
}

uint64_t ArrivalTable::Digest(uint32_t plan_index, int rank) const {
  return cell(plan_index, rank)->digest.load(std::memory_order_relaxed);
}

void ArrivalTable::SetLaunched(uint32_t plan_index, int rank, uint64_t launches) {
  cell(plan_index, rank)->launched.store(launches, std::memory_order_release);
}

uint64_t ArrivalTable::Launched(uint32_t plan_index, int rank) const {
  return cell(plan_index, rank)->launched.load(std::memory_order_acquire);
}

void ArrivalTable::CountLook(int rank) {
  std::atomic<uint64_t>& looks = mapping_.As<Header>()->ranks[rank].looks;
  looks.store(looks.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

uint64_t ArrivalTable::Looks(int rank) const {
  return mapping_.As<Header>()->ranks[rank].looks.load(std::memory_order_acquire);
}

void ArrivalTable::SetOwner(int rank, const ProcessIdentity& process) {
  RankWords& words = mapping_.As<Header>()->ranks[rank];
  words.owner_start.store(process.start_ticks, std::memory_order_relaxed);
  words.owner_pid.store(static_cast<uint64_t>(process.pid), std::memory_order_release);
}

ProcessIdentity ArrivalTable::Owner(int rank) const {
  const RankWords& words = mapping_.As<Header>()->ranks[rank];
  ProcessIdentity process;
  process.pid = static_cast<int>(words.owner_pid.load(std::memory_order_acquire));
  process.start_ticks = words.owner_start.load(std::memory_order_relaxed);
  return process;
}

void ArrivalTable::SetBroken(int rank) {
  mapping_.As<Header>()->ranks[rank].broken.store(1, std::memory_order_release);
}

bool ArrivalTable::Broken(int rank) const {
  return mapping_.As<Header>()->ranks[rank].broken.load(std::memory_order_acquire) != 0;
}

void ArrivalTable::SetBulkEnded(int rank, uint64_t launch_number) {
  mapping_.As<Header>()->ranks[rank].bulk_ended.store(launch_number, std::memory_order_release);
}

uint64_t ArrivalTable::BulkEnded(int rank) const {
  return mapping_.As<Header>()->ranks[rank].bulk_ended.load(std::memory_order_acquire);
}

}  // namespace tandem
