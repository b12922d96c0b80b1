// d2t and t2d, the tensors that tie a drafter's vocabulary to its target's.
#pragma once

#include "eagle3/dialects/spec_builder.h"
#include "formats/tensor.h"

namespace aerie {

enum class D2tForm {
  kOffset,    // target id = d + d2t[d]
  kAbsolute,  // target id = d2t[d] (llama.cpp)
};

/// Reads d2t and t2d (either may be null) into spec.d2t; vocab and draft_vocab are set. Errors: a map that is missing though it is
/// needed, of another type or shape, out of range, doubled, in the other form than the dialect's, all zeros (the first ids of the
/// target, which is what a map looks like that was never filled) unless t2d confirms it, and a t2d that says otherwise.
Status read_vocab_map(const TensorView* d2t, const TensorView* t2d, D2tForm form, SpecBuilder& build);

/// How a map looks, for people.
struct VocabMapShape {
  bool identity = false;  // the first draft_vocab ids of the target
  bool sorted = true;     // ascending target ids
};
VocabMapShape vocab_map_shape(const DraftSpec& spec);

}  // namespace aerie
