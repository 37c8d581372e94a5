#include "client/lib/needed_libraries.h"

#include <elf.h>

#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace tandem::client {
namespace {

// A file's bytes, with reads that never leave them.
class ElfFile {
 public:
  explicit ElfFile(std::string bytes) : bytes_(std::move(bytes)) {}

  // The structure at this offset; nullopt beyond the end.
  template <typename T>
  std::optional<T> At(uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  // The text at this offset; empty beyond the end.
  std::string TextAt(uint64_t offset) const {
    if (offset >= bytes_.size()) return {};
    const std::string_view rest = std::string_view(bytes_).substr(offset);
    return std::string(rest.substr(0, rest.find('\0')));
  }

  bool IsOfThisMachine() const {
    const std::optional<Elf64_Ehdr> header = At<Elf64_Ehdr>(0);
    constexpr uint16_t one = 1;
    const bool little = *reinterpret_cast<const uint8_t*>(&one) == 1;
    return header && std::memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == ELFCLASS64 &&
           header->e_ident[EI_DATA] == (little ? ELFDATA2LSB : ELFDATA2MSB);
  }

  std::vector<Elf64_Phdr> Segments() const {
    std::vector<Elf64_Phdr> segments;
    const std::optional<Elf64_Ehdr> header = At<Elf64_Ehdr>(0);
    for (uint64_t i = 0; header && i < header->e_phnum; ++i) {
      const std::optional<Elf64_Phdr> segment = At<Elf64_Phdr>(header->e_phoff + i * header->e_phentsize);
      if (segment) segments.push_back(*segment);
    }
    return segments;
  }

 private:
  const std::string bytes_;
};

// Where in the file the byte lies that is loaded to this address; nullopt if none is.
std::optional<uint64_t> OffsetOf(uint64_t address, const std::vector<Elf64_Phdr>& segments) {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz) {
      return segment.p_offset + (address - segment.p_vaddr);
    }
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<std::string>> NeededLibraries(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return NotFound("cannot read " + path);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  const ElfFile file(std::move(bytes).str());
  if (!file.IsOfThisMachine()) return InvalidArgument(path + " is no library of this machine");
  const std::vector<Elf64_Phdr> segments = file.Segments();
  std::vector<uint64_t> names;  // as offsets in the table of texts
  std::optional<uint64_t> texts;
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= segment.p_filesz; at += sizeof(Elf64_Dyn)) {
      const std::optional<Elf64_Dyn> entry = file.At<Elf64_Dyn>(segment.p_offset + at);
      if (!entry || entry->d_tag == DT_NULL) break;
      if (entry->d_tag == DT_NEEDED) names.push_back(entry->d_un.d_val);
      if (entry->d_tag == DT_STRTAB) texts = OffsetOf(entry->d_un.d_ptr, segments);
    }
  }
  std::vector<std::string> libraries;
  for (uint64_t name : names) {
    if (texts) libraries.push_back(file.TextAt(*texts + name));
  }
  return libraries;
}

}  // namespace tandem::client
