#include "text/tokenizer.h"

#include "fuzz/targets.h"

// The input is a GGUF file with a tokenizer's keys.
void aerie::fuzz::tokenizer(std::span<const uint8_t> input) {
  const auto file = GgufFile::read(MappedFile::from_memory("file", text_of(input)));
  if (!file.ok()) return;
  const auto tokenizer = Tokenizer::from_gguf(*file);
  if (!tokenizer.ok()) return;
  for (const char* text : {"Hello world, it's 12345!\n\n\tna\xc3\xafve \xe2\x98\x83 <|im_end|>", "\xff\xc3 ab"}) {
    const auto ids = tokenizer->encode(text);
    (void)tokenizer->encode_with_special(text);
    (void)tokenizer->encode_raw_prompt(text);
    if (ids.ok()) (void)tokenizer->decode(*ids, true);
  }
  for (int32_t id = -1; id <= tokenizer->vocab_size(); ++id) {
    (void)tokenizer->token_bytes(id);
    (void)tokenizer->is_end_of_generation(id);
    (void)tokenizer->decode({id});
  }
}
