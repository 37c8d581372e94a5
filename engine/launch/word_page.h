// File: word_page.h
//
// `WordPage`: a page of host memory with words that lanes write and the CPU reads.
#pragma once

#include <cstddef>
#include <utility>

#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem::engine {

class WordPage {
 public:
  static constexpr size_t kBytes = 4096;
  static constexpr size_t kWords = kBytes / sizeof(Word);

  // A zeroed page, registered with `backend`; it stays so until the backend ends, which must be before the
  // page does.
  static Result<WordPage> Create(Backend* backend);

  WordPage() = default;
  WordPage(WordPage&& other) noexcept : words_(std::exchange(other.words_, nullptr)) {}
  WordPage& operator=(WordPage&& other) noexcept {
    std::swap(words_, other.words_);
    return *this;
  }
  ~WordPage();

  Word& operator[](size_t index) const { return words_[index]; }

 private:
  Word* words_ = nullptr;
};

}  // namespace tandem::engine
