#include "common/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <utility>

namespace tandem {
namespace {

constexpr size_t kBytes = 4096;

bool IsMapped(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    size_t dash = 0;
    const uintptr_t begin = std::stoull(line, &dash, 16),
                    end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (begin <= wanted && wanted < end) return true;
  }
  return false;
}

TEST(MappingTest, UnmapsOnceAtItsEndAndAfterMoves) {
  auto fd = CreateSealedMemfd("test", 2 * kBytes);
  ASSERT_TRUE(fd.ok());
  auto first = Mapping::Map(fd->get(), 0, kBytes, true);
  auto second = Mapping::Map(fd->get(), kBytes, kBytes, true);
  ASSERT_TRUE(first.ok() && second.ok());
  const void* address = first->data();
  Mapping held = std::move(*first);
  EXPECT_TRUE(IsMapped(address));
  held = std::move(*second);
  EXPECT_FALSE(IsMapped(address));
  address = held.data();
  EXPECT_TRUE(IsMapped(address));
  { Mapping last = std::move(held); }
  EXPECT_FALSE(IsMapped(address));
}

TEST(MappingTest, AForkedChildKeepsWhatItHasAtTheAddress) {
  auto fd = CreateSealedMemfd("test", kBytes);
  ASSERT_TRUE(fd.ok());
  auto mapped = Mapping::Map(fd->get(), 0, kBytes, true);
  ASSERT_TRUE(mapped.ok());
  std::optional<Mapping> mapping(std::move(*mapped));
  void* address = mapping->data();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // The pages were not inherited, so that something of the child's own comes to lie there.
    void* own = ::mmap(address, kBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (own != address) ::_exit(1);
    mapping.reset();
    ::_exit(IsMapped(address) ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0)
      << "1: the child inherited the pages; 2: the destructor took the child's own";
  mapping.reset();
  EXPECT_FALSE(IsMapped(address));
}

}  // namespace
}  // namespace tandem
