#include "eagle3/dialects/vocab_map.h"

namespace aerie {
namespace {

Expected<std::vector<int64_t>> read_integers(const TensorView& tensor, int expected) {
  if (tensor.type != DType::kI64 && tensor.type != DType::kI32) {
    return corrupt("d2t has the type {}, expected I64", dtype_name(tensor.type));
  }
  if (tensor.shape != std::vector<uint64_t>{static_cast<uint64_t>(expected)}) {
    return corrupt("d2t has the shape {}, expected [{}] (draft_vocab_size)", tensor.shape_string(), expected);
  }
  return to_integers(tensor);
}

/// Ascending ids of the target: what a map in the absolute form looks like.
bool looks_absolute(const std::vector<int64_t>& values, int vocab) {
  int64_t previous = -1;
  for (const int64_t value : values) {
    if (value <= previous || value >= vocab) return false;
    previous = value;
  }
  return true;
}

Status check_t2d(const TensorView& tensor, const DraftSpec& spec, const std::vector<int64_t>& values) {
  if (tensor.type != DType::kBool && tensor.type != DType::kU8) {
    return corrupt("t2d has the type {}, expected BOOL", dtype_name(tensor.type));
  }
  if (tensor.shape != std::vector<uint64_t>{static_cast<uint64_t>(spec.vocab)}) {
    return corrupt("t2d has the shape {}, expected [{}] (vocab_size)", tensor.shape_string(), spec.vocab);
  }
  const std::vector<int32_t> to_draft = invert_d2t(spec);
  for (size_t t = 0; t < to_draft.size(); ++t) {
    if (tensor.data[t] > 1) return corrupt("t2d[{}] is {}, expected 0 or 1", t, tensor.data[t]);
  }
  for (size_t t = 0; t < to_draft.size(); ++t) {
    if ((tensor.data[t] != 0) == (to_draft[t] >= 0)) continue;
    bool absolute = looks_absolute(values, spec.vocab);
    for (const int64_t value : values) absolute = absolute && tensor.data[static_cast<size_t>(value)] != 0;
    return corrupt("t2d says that target token {} is {}the draft vocabulary, d2t says the opposite{}", t,
                   tensor.data[t] != 0 ? "in " : "outside ",
                   absolute ? "; with d2t read as target ids the two agree, but this dialect stores offsets (target id = d + d2t[d])" : "");
  }
  return {};
}

}  // namespace

Status read_vocab_map(const TensorView* d2t, const TensorView* t2d, D2tForm form, SpecBuilder& build) {
  DraftSpec& spec = build.spec();
  spec.d2t.clear();
  if (d2t == nullptr) {
    if (spec.draft_vocab != spec.vocab) {
      return not_found("d2t is missing, but the draft vocabulary of {} is smaller than the target's of {}", spec.draft_vocab, spec.vocab);
    }
    build.note("d2t", Source::kDefaulted, "both vocabularies are the same");
    if (t2d != nullptr) return check_t2d(*t2d, spec, {});
    return {};
  }
  AERIE_ASSIGN(const std::vector<int64_t> values, read_integers(*d2t, spec.draft_vocab));
  const bool offsets = form == D2tForm::kOffset;
  bool all_zero = true;
  spec.d2t.resize(values.size());
  for (size_t d = 0; d < values.size(); ++d) {
    const auto base = offsets ? static_cast<int64_t>(d) : 0;
    all_zero = all_zero && values[d] == 0;
    // Compared before the addition, which could overflow.
    if (values[d] < -base || values[d] >= spec.vocab - base) {
      const Status status = offsets ? corrupt("d2t[{}] is {}: draft token {} plus this offset is outside the target's vocabulary of {}", d,
                                              values[d], d, spec.vocab)
                                    : corrupt("d2t[{}] is {}, outside the target's vocabulary of {}", d, values[d], spec.vocab);
      if (!offsets || !looks_absolute(values, spec.vocab)) return status;
      return corrupt("{}; the values look like target ids, but this dialect stores offsets (target id = d + d2t[d])", status.message());
    }
    spec.d2t[d] = static_cast<int32_t>(base + values[d]);
  }
  if (!offsets && all_zero && values.size() > 1) {
    return corrupt("d2t is all zeros, so that every draft token would be the target's first");
  }
  build.note("d2t", Source::kRead, offsets ? "d2t (offsets in this dialect)" : "d2t (target ids in this dialect)");
  // A doubled id would be noticed by validate() too, but t2d is compared before that and would blame the wrong tensor.
  std::vector<int32_t> owner(static_cast<size_t>(spec.vocab), -1);
  for (size_t d = 0; d < spec.d2t.size(); ++d) {
    int32_t& first = owner[static_cast<size_t>(spec.d2t[d])];
    if (first >= 0) {
      return corrupt("d2t maps the draft tokens {} and {} to the same target token {}{}", first, d, spec.d2t[d],
                     !offsets && spec.d2t[d] < spec.draft_vocab ? "; this dialect stores target ids, not offsets" : "");
    }
    first = static_cast<int32_t>(d);
  }
  const VocabMapShape shape = vocab_map_shape(spec);
  if (t2d != nullptr) {
    AERIE_TRY(check_t2d(*t2d, spec, values));
  } else if (shape.identity && spec.draft_vocab < spec.vocab) {
    return corrupt("d2t {}, so that the {} draft tokens would be the first of the target's {}, and there is no t2d to confirm it",
                   offsets ? "is all zeros" : "counts up from zero", spec.draft_vocab, spec.vocab);
  }
  if (offsets && spec.draft_vocab < spec.vocab && t2d == nullptr && looks_absolute(values, spec.vocab)) {
    build.find(Severity::kWarning, "d2t-looks-absolute",
               "the values of d2t are ascending ids of the target, as in the absolute form; they were read as offsets",
               "compare a few draft tokens with the target's; if they are ids already, subtract each entry's index");
  }
  if (!shape.sorted) {
    build.find(Severity::kNote, "d2t-unsorted", "d2t does not ascend: draft tokens are in an order of their own (by frequency, perhaps)");
  }
  if (shape.identity && spec.draft_vocab < spec.vocab) {
    build.find(Severity::kWarning, "d2t-identity",
               fmt::format("the draft vocabulary is the target's first {} tokens, which are seldom the most frequent", spec.draft_vocab));
  }
  if (shape.identity && spec.draft_vocab == spec.vocab) spec.d2t.clear();
  return {};
}

VocabMapShape vocab_map_shape(const DraftSpec& spec) {
  VocabMapShape out;
  out.identity = true;
  for (int d = 0; d < spec.draft_vocab; ++d) {
    out.identity = out.identity && spec.to_target(d) == d;
    out.sorted = out.sorted && (d == 0 || spec.to_target(d) > spec.to_target(d - 1));
  }
  return out;
}

}  // namespace aerie
