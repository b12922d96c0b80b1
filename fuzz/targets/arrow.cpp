#include "formats/arrow_stream.h"

#include "formats/token_rows.h"
#include "fuzz/targets.h"
#include "support/temp_folder.h"

// The input is a shard of a data set; or, if it begins with an opening brace, the state.json beside two that are sound.
void aerie::fuzz::arrow(std::span<const uint8_t> input) {
  if (!input.empty() && input[0] == '{') {
    static const TempFolder folder;
    static const bool written = [] {
      const std::string from = std::string(AERIE_SOURCE_DIR) + "/tests/formats/data/arrow/dataset/";
      for (const char* name : {"data-00000-of-00002.arrow", "data-00001-of-00002.arrow"}) folder.write(name, read_bytes(from + name));
      return TokenRows::open(folder.path()).ok();
    }();
    if (!written) std::abort();
    folder.write("state.json", text_of(input));
    const auto rows = TokenRows::open(folder.path());
    if (rows.ok()) (void)rows->mask(1, {7, 8});
    return;
  }
  const auto stream = ArrowStream::read(MappedFile::from_memory("file", text_of(input)), {"input_ids", "loss_mask"});
  if (!stream.ok()) return;
  if (stream->rows() > input.size()) std::abort();
  for (uint64_t row = 0; row < stream->rows(); ++row) {
    for (const size_t column : {0, 1}) {
      const auto list = stream->list(column, row);
      // Lists may share values; the last of each tells whether all are there.
      if (list.ok() && list->size() > 0) (void)((*list)[0] + (*list)[list->size() - 1]);
    }
  }
}
