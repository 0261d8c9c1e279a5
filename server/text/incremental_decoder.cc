#include "server/text/incremental_decoder.h"

#include "server/text/utf8.h"

namespace firesteel {

std::string IncrementalDecoder::Push(std::string_view token_bytes) {
  pending_.append(token_bytes);
  std::string ready;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Unit unit = NextUtf8Unit(rest);
    if (unit.kind == Utf8Unit::Kind::kIncomplete) break;
    ready.append(unit.kind == Utf8Unit::Kind::kComplete ? rest.substr(0, unit.byte_count)
                                                        : kReplacementCharacter);
    rest.remove_prefix(unit.byte_count);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return ready;
}

std::string IncrementalDecoder::Finish() {
  if (pending_.empty()) return std::string();
  pending_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace firesteel
