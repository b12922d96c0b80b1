#include "formats/torch_file.h"

#include "fuzz/targets.h"

namespace aerie::fuzz {
namespace {

// Every value, but no more than `budget`: values that are shared unfold without end.
int visit(const TorchValue& value, int budget) {
  if (--budget <= 0) return 0;
  if (const TensorView* tensor = value.tensor()) touch(tensor->data);
  for (size_t i = 0; i < value.size() && budget > 0; ++i) {
    if (value.kind() == PickleKind::kDict) {
      if (const auto key = value.key_at(i).string(); key && !value.find(*key)) std::abort();
    }
    budget = visit(value.at(i), budget);
  }
  return budget;
}

}  // namespace

void torch(std::span<const uint8_t> input) {
  const auto file = TorchFile::from_memory("file", text_of(input));
  if (!file.ok()) return;
  visit(file->root(), 10'000);
  const auto checkpoint = TorchCheckpoint::from_file(*file);
  if (!checkpoint.ok()) return;
  for (const TensorView& tensor : checkpoint->tensors()) touch(tensor.data);
}

}  // namespace aerie::fuzz
