#include "engine/launch/word_page.h"

#include <sys/mman.h>

#include <cerrno>
#include <new>

namespace tandem::engine {

Result<WordPage> WordPage::Create(Backend* backend) {
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return SystemError("mmap", errno);
  WordPage page;
  page.words_ = static_cast<Word*>(memory);
  for (size_t i = 0; i < kWords; ++i) new (page.words_ + i) Word(0);
  TANDEM_RETURN_IF_ERROR(backend->RegisterHostMemory(memory, kBytes));
  return page;
}

WordPage::~WordPage() {
  if (words_ != nullptr) ::munmap(words_, kBytes);
}

}  // namespace tandem::engine
