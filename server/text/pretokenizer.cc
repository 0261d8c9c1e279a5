#include "server/text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "kernels/core/check.h"
#include "server/text/regex_dialect.h"

namespace firesteel {
namespace {

// A run of 1 MB of spaces needs about one match step per byte; patterns that backtrack
// exponentially end here.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;  // the interpreter's frames, where there is no JIT
constexpr size_t kJitStackStartBytes = 32 * 1024;
constexpr size_t kJitStackMaxBytes = 16 * 1024 * 1024;

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct JitStackDeleter {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};
struct CompileContextDeleter {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

std::string PcreMessage(int error) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(error, buffer, sizeof(buffer)) < 0) {
    return "error " + std::to_string(error);
  }
  return reinterpret_cast<const char*>(buffer);
}

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

// What one call of Split needs besides the code; the code itself is shared by all threads.
struct MatchState {
  MatchState()
      : stack(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        data(pcre2_match_data_create(1, nullptr)) {
    FIRESTEEL_CHECK(context != nullptr && data != nullptr, "out of memory for a regex match");
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    // Null without JIT support, which means the default stack.
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  std::unique_ptr<pcre2_jit_stack, JitStackDeleter> stack;
  std::unique_ptr<pcre2_match_context, MatchContextDeleter> context;
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data;
};

struct Segment {
  std::string_view text;
  bool is_match;
};

}  // namespace

class Pretokenizer::Step {
 public:
  static Result<std::unique_ptr<Step>> Create(const SplitSpec& spec) {
    std::string pattern = spec.pattern;
    uint32_t options = PCRE2_UTF;
    if (spec.literal) {
      options |= PCRE2_LITERAL;
    } else {
      FIRESTEEL_ASSIGN_OR_RETURN(pattern, TranslateOnigurumaPattern(spec.pattern, spec.where));
      options |= PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    }
    const std::unique_ptr<pcre2_compile_context, CompileContextDeleter> context(
        pcre2_compile_context_create(nullptr));
    FIRESTEEL_CHECK(context != nullptr, "out of memory for a regex");
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    std::unique_ptr<pcre2_code, CodeDeleter> code(pcre2_compile(
        Units(pattern), pattern.size(), options, &error, &error_offset, context.get()));
    if (code == nullptr) {
      return InvalidArgument(spec.where + ": the pattern does not compile: " + PcreMessage(error));
    }
    uint32_t matches_empty = 0;
    pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0) {
      return Unsupported(spec.where +
                         ": the pattern can match the empty text, needs at least one character");
    }
    const int jit = pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    if (jit != 0 && jit != PCRE2_ERROR_JIT_BADOPTION) {
      return Internal(spec.where + ": the pattern cannot be compiled: " + PcreMessage(jit));
    }
    return std::unique_ptr<Step>(new Step(spec, std::move(code)));
  }

  // Appends the pieces of `text`.
  Status Split(std::string_view text, const MatchState& state,
               std::vector<std::string_view>* pieces) const {
    std::vector<Segment> segments;
    FIRESTEEL_RETURN_IF_ERROR(FindSegments(text, state, &segments));
    if (behavior_ == SplitSpec::Behavior::kMergedWithNext) {
      MergeWithNext(segments, pieces);
      return Status::Ok();
    }
    const size_t first_piece = pieces->size();
    bool previous_is_match = false;
    for (const Segment& segment : segments) {
      const bool joins = behavior_ == SplitSpec::Behavior::kMergedWithPrevious &&
                         segment.is_match && !previous_is_match && pieces->size() > first_piece;
      previous_is_match = segment.is_match;
      if (segment.is_match && behavior_ == SplitSpec::Behavior::kRemoved) continue;
      if (joins) {
        std::string_view& last = pieces->back();
        last = std::string_view(last.data(), last.size() + segment.text.size());
      } else {
        pieces->push_back(segment.text);
      }
    }
    return Status::Ok();
  }

 private:
  Step(const SplitSpec& spec, std::unique_ptr<pcre2_code, CodeDeleter> code)
      : where_(spec.where),
        behavior_(spec.behavior),
        invert_(spec.invert),
        code_(std::move(code)) {}

  // Matches and what lies between them, in order; none empty.
  Status FindSegments(std::string_view text, const MatchState& state,
                      std::vector<Segment>* segments) const {
    size_t offset = 0;
    while (offset < text.size()) {
      const int found = pcre2_match(code_.get(), Units(text), text.size(), offset,
                                    PCRE2_NO_UTF_CHECK, state.data.get(), state.context.get());
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) return MatchError(found);
      const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(state.data.get());
      if (bounds[0] < offset || bounds[1] <= bounds[0]) {
        return Unsupported(where_ + ": the pattern matched an empty text at byte " +
                           std::to_string(bounds[0]) + ", needs at least one character");
      }
      if (bounds[0] > offset) {
        segments->push_back({text.substr(offset, bounds[0] - offset), invert_});
      }
      segments->push_back({text.substr(bounds[0], bounds[1] - bounds[0]), !invert_});
      offset = bounds[1];
    }
    if (offset < text.size()) segments->push_back({text.substr(offset), invert_});
    return Status::Ok();
  }

  Status MatchError(int error) const {
    const std::string message = where_ + ": matching this text failed: " + PcreMessage(error) +
                                "; needs a text that the pattern matches within " +
                                std::to_string(kMatchLimit) + " steps";
    switch (error) {
      case PCRE2_ERROR_MATCHLIMIT:
      case PCRE2_ERROR_HEAPLIMIT:
      case PCRE2_ERROR_DEPTHLIMIT:
      case PCRE2_ERROR_JIT_STACKLIMIT: return InvalidArgument(message);
      default: return Internal(message);
    }
  }

  // The mirror image of merging with the previous piece: of adjacent matches only the last one
  // joins what follows.
  static void MergeWithNext(const std::vector<Segment>& segments,
                            std::vector<std::string_view>* pieces) {
    for (size_t i = 0; i < segments.size(); ++i) {
      const std::string_view text = segments[i].text;
      const bool joins =
          segments[i].is_match && i + 1 < segments.size() && !segments[i + 1].is_match;
      if (!joins) {
        pieces->push_back(text);
        continue;
      }
      pieces->push_back(std::string_view(text.data(), text.size() + segments[i + 1].text.size()));
      ++i;
    }
  }

  std::string where_;
  SplitSpec::Behavior behavior_;
  bool invert_;
  std::unique_ptr<pcre2_code, CodeDeleter> code_;
};

Pretokenizer::Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

Result<Pretokenizer> Pretokenizer::Create(const std::vector<SplitSpec>& splits) {
  Pretokenizer pretokenizer;
  for (const SplitSpec& split : splits) {
    FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<Step> step, Step::Create(split));
    pretokenizer.steps_.push_back(std::move(step));
  }
  return pretokenizer;
}

Result<std::vector<std::string_view>> Pretokenizer::Split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (text.empty()) return pieces;
  pieces.push_back(text);
  const MatchState state;
  for (const std::unique_ptr<Step>& step : steps_) {
    std::vector<std::string_view> finer;
    finer.reserve(pieces.size());
    for (const std::string_view piece : pieces) {
      FIRESTEEL_RETURN_IF_ERROR(step->Split(piece, state, &finer));
    }
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace firesteel
