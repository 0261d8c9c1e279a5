#include "server/text/regex_dialect.h"

#include <cstddef>
#include <utility>

namespace firesteel {
namespace {

bool IsAsciiLetterOrDigit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  Result<std::string> Run() {
    while (position_ < pattern_.size()) {
      const char c = pattern_[position_];
      if (c == '\\') {
        FIRESTEEL_RETURN_IF_ERROR(Escape());
      } else if (in_class_) {
        FIRESTEEL_RETURN_IF_ERROR(InClass(c));
      } else {
        FIRESTEEL_RETURN_IF_ERROR(Outside(c));
      }
    }
    return std::move(output_);
  }

 private:
  Status Refuse(std::string_view construct) const {
    return Unsupported(where_ + ": the construct '" + std::string(construct) + "' at byte " +
                       std::to_string(position_) + " of the pattern is not supported");
  }

  bool StartsWith(std::string_view text) const {
    return pattern_.substr(position_).starts_with(text);
  }

  void Copy(size_t byte_count) {
    output_.append(pattern_.substr(position_, byte_count));
    position_ += byte_count;
  }

  Status Escape() {
    if (position_ + 1 == pattern_.size()) return Refuse("\\");
    const char c = pattern_[position_ + 1];
    switch (c) {
      case 's':
      case 'S':
        // PCRE2's \s also has U+180E, which lost the property White_Space in Unicode 6.3.
        output_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
        position_ += 2;
        return Status::Ok();
      case 'p':
      case 'P': return Property();
      case 'x':
        // \xHH is a byte in one dialect and a character in the other.
        return StartsWith("\\x{") ? CopyThroughBrace() : Refuse("\\x");
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f': Copy(2); return Status::Ok();
      default:
        if (IsAsciiLetterOrDigit(c)) return Refuse(pattern_.substr(position_, 2));
        Copy(2);
        return Status::Ok();
    }
  }

  Status CopyThroughBrace() {
    const size_t brace = pattern_.find('}', position_);
    if (brace == std::string_view::npos) return Refuse(pattern_.substr(position_, 3));
    Copy(brace + 1 - position_);
    return Status::Ok();
  }

  // General categories have the same names; a script alone means "script extensions" to PCRE2.
  Status Property() {
    const size_t open = position_ + 2;
    const size_t brace = pattern_.find('}', position_);
    if (open >= pattern_.size() || pattern_[open] != '{' || brace == std::string_view::npos) {
      return Refuse(pattern_.substr(position_, 3));
    }
    const std::string_view name = pattern_.substr(open + 1, brace - open - 1);
    if (name.size() <= 2) return CopyThroughBrace();
    for (const char c : name) {
      if (!IsAsciiLetterOrDigit(c) && c != '_') {
        return Refuse(pattern_.substr(position_, brace + 1 - position_));
      }
    }
    Copy(3);
    output_ += "sc:";
    return CopyThroughBrace();
  }

  Status InClass(char c) {
    // A nested class in Ruby syntax, a plain bracket in PCRE2.
    if (c == '[') return Refuse("[ inside a class");
    if (StartsWith("&&")) return Refuse("&&");
    if (c == ']') in_class_ = false;
    Copy(1);
    return Status::Ok();
  }

  Status Outside(char c) {
    switch (c) {
      case '^':
      case '$': return Refuse(std::string_view(&c, 1));
      case '[':
        in_class_ = true;
        Copy(1);
        if (StartsWith("^")) Copy(1);
        if (StartsWith("]")) return Refuse("] as the first of a class");
        return Status::Ok();
      case '(': return Group();
      case '{':
        if (StartsWith("{,")) return Refuse("{,");
        Copy(1);
        return Status::Ok();
      case '}':
        // Possessive in PCRE2, a repeated repeat in Ruby syntax.
        if (StartsWith("}+")) return Refuse("}+");
        Copy(1);
        return Status::Ok();
      default: Copy(1); return Status::Ok();
    }
  }

  Status Group() {
    if (StartsWith("(*")) return Refuse("(*");
    if (!StartsWith("(?")) {
      Copy(1);
      return Status::Ok();
    }
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (!StartsWith(known)) continue;
      Copy(known.size());
      return Status::Ok();
    }
    return Refuse(pattern_.substr(position_, 4));
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t position_ = 0;
  bool in_class_ = false;
  std::string output_;
};

}  // namespace

Result<std::string> TranslateOnigurumaPattern(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).Run();
}

}  // namespace firesteel
