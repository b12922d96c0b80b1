#include "formats/trace_source.h"

#include "formats/safetensors.h"
#include "fuzz/targets.h"
#include "support/temp_folder.h"

// The input is one conversation of torch.save; or, if it begins with an opening brace, the token rows of a speculators data set of two.
void aerie::fuzz::trace(std::span<const uint8_t> input) {
  static const TempFolder folder;
  static const bool written = [] {
    const std::vector<uint8_t> states(2 * 2 * 2 * 2), tokens(2 * 8);
    for (const char* name : {"hs_0.safetensors", "hs_1.safetensors"}) {
      const Status status =
          write_safetensors(folder / name, {{"hidden_states", DType::kBF16, {2, 2, 2}, states}, {"token_ids", DType::kI64, {2}, tokens}});
      if (!status.ok()) return false;
    }
    return true;
  }();
  if (!written) std::abort();
  const bool rows = !input.empty() && input[0] == '{';
  const std::string path = folder.write(rows ? "rows.jsonl" : "data_0.ckpt", text_of(input));
  const auto source = TraceSource::open(rows ? folder.path() : path, {rows ? path : "", false});
  if (!source.ok()) return;
  for (size_t i = 0; i < (*source)->size(); ++i) {
    const auto conversation = (*source)->read(i);
    if (conversation.ok() && conversation->trace.mask.size() != conversation->trace.length()) std::abort();
  }
}
