// Greedy generation of one sequence, plain or with a chain of drafts; the tokens are the same either way.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/runtime.h"
#include "formats/engine_trace.h"

namespace aerie {

inline constexpr int kMaxDraftTokens = 16;
inline constexpr int kRecordedTop = 8;       // logits that a record keeps of a draft step
inline constexpr int kAutoDraftTokens = -1;  // the engine chooses before every cycle (draft_length.h)

struct GenerateOptions {
  int max_new_tokens = 256;
  int draft_tokens = 0;                 // K: drafts per cycle, 0..kMaxDraftTokens, 0 meaning plain decoding; or kAutoDraftTokens
  DraftLength* draft_length = nullptr;  // what chooses; null: the runtime's own
  int prompt_chunk = 512;               // prompt rows per forward; has no influence on the output
  bool ignore_end = false;              // go on after an end-of-generation token (benchmarks)
  /// Called with every token in order as soon as it is certain, the end token included; false stops ("cancelled").
  std::function<bool(int32_t)> on_token;
  const std::atomic<bool>* cancel = nullptr;
  EngineRequest* record = nullptr;  // filled with what the drafter is handed and answers; null costs nothing
};

/// A cycle drafts, verifies all drafts in one forward of the target, and emits the accepted ones and the target's own next token.
struct DraftStats {
  int k = 0;  // or kAutoDraftTokens
  int64_t cycles = 0, drafted = 0, accepted = 0;
  std::vector<int64_t> accepted_per_position;  // [largest k] cycles in which the draft at this depth was accepted
  std::vector<int> accepted_per_cycle;
  /// Tokens emitted per verify, the target's own included: 1 + accepted / cycles.
  double acceptance_length() const { return cycles == 0 ? 0.0 : 1.0 + static_cast<double>(accepted) / static_cast<double>(cycles); }
};

struct GenerateResult {
  std::vector<int32_t> tokens;  // generated, the end token included
  std::string finish_reason;    // "stop", "length" or "cancelled"
  double prefill_seconds = 0;   // until the first token is known
  double decode_seconds = 0;    // from there to the last one
  DraftStats draft;
  double decode_tokens_per_second() const {
    return tokens.size() < 2 || decode_seconds <= 0 ? 0.0 : static_cast<double>(tokens.size() - 1) / decode_seconds;
  }
};

/// Generates after `prompt`. kInvalidArgument: an empty prompt, a K out of range, drafts without a drafter. kResource: a prompt
/// that leaves no room in the context. kInternal: the model's output is not finite.
Expected<GenerateResult> generate(Runtime& runtime, std::span<const int32_t> prompt, const GenerateOptions& options);

}  // namespace aerie
