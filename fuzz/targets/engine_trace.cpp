#include "formats/engine_trace.h"

#include "fuzz/targets.h"
#include "support/temp_folder.h"

namespace {

/// Two rows and two steps in one cycle.
aerie::EngineRequest request() {
  aerie::EngineRequest out;
  out.tokens = {1, 2, 3, 4};
  out.prompt = 2;
  out.cycles = {{2, 1, {4, 5}}};
  out.rows = {{2, 0, 0}, {3, 1, 0}};
  out.width = 3;
  out.features.assign(6, 0x3f80);
  out.steps = {{0, 0, 3, 1}, {0, 1, 4, 2}};
  out.top = 1;
  out.top_tokens = {4, 5};
  out.top_logits = {1, 0.5f};
  return out;
}

}  // namespace

// The input is the tensors of a request whose lines are sound; or, if it begins with an opening brace, the lines beside sound tensors.
void aerie::fuzz::engine_trace(std::span<const uint8_t> input) {
  static const TempFolder folder;
  static const bool written = [] {
    for (const char* half : {"lines", "tensors"}) {
      auto writer = EngineTraceWriter::open(folder / half, {"engine 1", "drafter"});
      if (!writer.ok() || !writer->write(request()).ok()) return false;
    }
    return true;
  }();
  if (!written) std::abort();
  const bool lines = !input.empty() && input[0] == '{';
  folder.write(lines ? "lines/request_0.jsonl" : "tensors/request_0.safetensors", text_of(input));
  const auto reader = EngineTraceReader::open(folder / (lines ? "lines" : "tensors"));
  if (!reader.ok()) std::abort();
  const auto read = reader->read(0);
  if (read.ok() && !read->check().ok()) std::abort();
}
