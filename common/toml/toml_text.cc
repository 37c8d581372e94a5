#include "common/toml/toml_text.h"

#include <cerrno>
#include <cstdio>
#include <memory>

namespace tandem {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;

// Follows strings and comments through a text, one byte at a time. Exact for valid TOML; a text is valid up
// to its first error, where toml++ stops.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // The line of the first character that may not stand where it does, or 0; then Reason() says why.
  int FirstBadLine() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte order mark
    for (; at_ < text_.size(); ++at_) {
      char c = text_[at_];
      auto byte = static_cast<unsigned char>(c);
      bool control = (byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7f;
      if (control || (byte >= 0x80 && !AllowsNonAscii())) return line_;
      if (state_ == State::kPlain && (c == '"' || c == '\'') && !MayOpen()) {
        reason_ = "no string can begin here (after a dot neither)";
        return line_;
      }
      Step(c);
      if (c == '\n') ++line_;
    }
    return 0;
  }

  const char* Reason() const { return reason_; }

 private:
  enum class State { kPlain, kComment, kString, kMultiLineString };

  bool AllowsNonAscii() const { return state_ == State::kComment || (state_ == State::kString && !escaped_); }

  // A string begins at the start of the text or after one of these. Elsewhere a quote is part of a malformed
  // value, which toml++ reads to its end, or of a quoted key after a dot. Only parsing can distinguish the
  // two.
  bool MayOpen() const {
    return at_ == 0 || std::string_view(" \t\r\n=[,{").find(text_[at_ - 1]) != std::string_view::npos;
  }

  bool TripleAt(char quote) const { return text_.substr(at_, 3) == std::string(3, quote); }

  void Step(char c) {
    switch (state_) {
      case State::kPlain:
        if (c == '#') state_ = State::kComment;
        if (c == '"' || c == '\'') Open(c);
        break;
      case State::kComment:
        if (c == '\n') state_ = State::kPlain;
        break;
      case State::kString:
        if (escaped_) {
          escaped_ = false;
        } else if (c == '\\' && quote_ == '"') {
          escaped_ = true;
        } else if (c == quote_ || c == '\n') {
          state_ = State::kPlain;
        }
        break;
      case State::kMultiLineString:
        if (escaped_) {
          escaped_ = false;
        } else if (c == '\\' && quote_ == '"') {
          escaped_ = true;
        } else if (c == quote_ && TripleAt(quote_)) {
          Close();
        }
        break;
    }
  }

  void Open(char quote) {
    quote_ = quote;
    escaped_ = false;
    state_ = State::kString;
    if (!TripleAt(quote)) return;
    state_ = State::kMultiLineString;
    at_ += 2;
  }

  // Up to two quotes more may belong to the string's own end.
  void Close() {
    at_ += 2;
    for (int i = 0; i < 2 && at_ + 1 < text_.size() && text_[at_ + 1] == quote_; ++i) ++at_;
    state_ = State::kPlain;
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  State state_ = State::kPlain;
  char quote_ = '"';
  bool escaped_ = false;
  const char* reason_ =
      "characters above ASCII are allowed in comments and one-line strings only, control characters nowhere";
};

}  // namespace

Result<std::string> ReadTextFile(const std::string& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) return SystemError("open " + path, errno);
  std::string text;
  char buffer[4096];
  size_t got = 0;
  while ((got = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) {
    text.append(buffer, got);
    if (text.size() > kMaxFileBytes) return InvalidArgument(path + " is larger than 1 MiB");
  }
  if (std::ferror(file.get()) != 0) return SystemError("read " + path, errno);
  return text;
}

Status CheckTomlText(std::string_view text, std::string_view file) {
  Scanner scanner(text);
  int line = scanner.FirstBadLine();
  if (line == 0) return Status::Ok();
  return InvalidArgument(std::string(file) + ":" + std::to_string(line) + ": " + scanner.Reason());
}

std::string QuoteToml(std::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out = "\"";
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace tandem
