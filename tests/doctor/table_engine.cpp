// Faults of an engine that is given the right files, which its trace shows beside the stored states.
#include <memory>

#include "diagnosis.h"
#include "emulated_engine.h"
#include "table.h"

namespace aerie {
namespace {

using Fault = std::function<void(EmulatedEngine&)>;

struct Setting {
  std::function<void(DraftSpec&)> prepare = [](DraftSpec&) {};
  bool with_states = true, with_target = false;
};

std::function<std::vector<Finding>()> engine(const Fault& fault, const Setting& setting = {}) {
  return [=] {
    DraftSpec spec = drawn_spec();
    setting.prepare(spec);
    const Reading declared = true_reading(spec);
    EmulatedEngine served{.reading = declared};
    fault(served);
    return diagnose_engine(drawn_checkpoint(spec, 7), declared, served, setting.with_states,
                           setting.with_target ? drawn_target(spec, 3) : TargetTables{});
  };
}

Fault feeds(const std::vector<int>& taps) {
  return [taps](EmulatedEngine& e) { set_taps(e.reading, taps); };
}

/// What stands in a row is changed; `change` sees float values.
Fault changes(const std::function<void(std::span<float> tap, int position)>& change) {
  return [change](EmulatedEngine& e) {
    const size_t width = static_cast<size_t>(e.reading.spec.target_hidden);
    e.spoil = [change, width](std::span<uint16_t> feature, int position) {
      std::vector<float> values(feature.size());
      std::transform(feature.begin(), feature.end(), values.begin(), bf16_to_f32);
      for (size_t at = 0; at < values.size(); at += width) change(std::span(values).subspan(at, width), position);
      std::transform(values.begin(), values.end(), feature.begin(), f32_to_bf16);
    };
  };
}

void zero(std::span<float> tap) { std::fill(tap.begin(), tap.end(), 0.0f); }

/// Each request is served by a copy of the hook, which counts how often it sees the first position.
Fault empty_in_one_of_four() {
  return [](EmulatedEngine& e) {
    auto requests = std::make_shared<int>(0);
    e.spoil = [requests](std::span<uint16_t> feature, int position) {
      *requests += position == 0 ? 1 : 0;
      if (*requests % 4 == 1) std::fill(feature.begin(), feature.end(), uint16_t{0});
    };
  };
}

void rotate(std::span<float> tap) {
  for (size_t i = 0; i + 1 < tap.size(); i += 2) {
    const float x = tap[i], y = tap[i + 1];
    tap[i] = 0.6f * x - 0.8f * y;
    tap[i + 1] = 0.8f * x + 0.6f * y;
  }
}

float root_mean_square(std::span<const float> tap) {
  float squares = 0;
  for (const float x : tap) squares += x * x;
  return std::sqrt(squares / static_cast<float>(tap.size()));
}

void unit_size(std::span<float> tap) {
  const float size = root_mean_square(tap);
  for (float& x : tap) x *= 1 / size;
}

void latent(DraftSpec& spec) {
  make_latent(spec);
  spec.feature_norm = FeatureNorm::kPerTap;
}

}  // namespace

// clang-format off
std::vector<TableRow> engine_faults() {
  const auto spec = [](auto change) { return [change](EmulatedEngine& e) { change(e.reading.spec); }; };
  const auto noise = [](std::span<float> tap, int) {
    const float size = root_mean_square(tap);
    for (size_t i = 0; i < tap.size(); ++i) tap[i] += (i % 2 == 0 ? 0.5f : -0.5f) * size;
  };
  return {
      {{4}, "hard-coded layers, the files' are ignored", {"engine-wrong-taps"}, engine(feeds({2, 4, 5}))},
      {{7}, "the target's class has no hook: the features are zeros", {"engine-feature-empty"}, engine(changes([](std::span<float> t, int) { zero(t); }))},
      {{10}, "a port that captures the first three states", {"engine-wrong-taps"}, engine(feeds({0, 1, 2}))},
      {{12}, "fewer layers captured than the drafter has taps", {"engine-feature-width"}, engine([](EmulatedEngine& e) { e.hand_over = 64; })},
      {{13, 24}, "the algorithm EAGLE: one state is handed over", {"engine-feature-width"}, engine([](EmulatedEngine& e) { e.hand_over = 32; })},
      {{16}, "the flag of the norm stands in a nested object and is not read", {"engine-feature-norm"}, engine(spec([](DraftSpec& s) { s.feature_norm = FeatureNorm::kNone; }))},
      {{17}, "norm_output not taken over", {"engine-feedback"}, engine(spec([](DraftSpec& s) { s.feedback = Feedback::kPreNorm; }))},
      {{18}, "a latent-attention drafter whose fc_norm is passed over", {"engine-feature-norm"},
       engine(spec([](DraftSpec& s) { s.feature_norm = FeatureNorm::kNone; }), {latent})},
      {{19}, "a port that adds the wrong residual", {"engine-norm-before-residual"}, engine(spec([](DraftSpec& s) { s.norm_before_residual = true; }))},
      {{22}, "q and k norms dropped by the loader", {"engine-qk-norm"},
       engine(spec([](DraftSpec& s) { s.qk_norm = false; }), {[](DraftSpec& s) { s.qk_norm = true; }})},
      {{23}, "3.1's feedback asked of a classic drafter: later drafts alone differ", {"engine-feedback"},
       engine(spec([](DraftSpec& s) { s.feedback = Feedback::kPostNorm; }), {[](DraftSpec& s) { s.feedback = Feedback::kPreNorm; }})},
      {{29}, "the drafter's own embedding overwritten by the target's", {"engine-own-embedding"},
       engine(spec([](DraftSpec& s) { s.own_embedding = false; }), {[](DraftSpec&) {}, true, true})},
      {{32}, "a rotated target", {"engine-feature-unknown"}, engine(changes([](std::span<float> t, int) { rotate(t); }))},
      {{40}, "a target quantised beyond recognition", {"engine-feature-unknown"}, engine(changes(noise))},
      {{41, 42}, "the target's quantisation applied to the drafter's weights", {"engine-drafts-unexplained"},
       engine([](EmulatedEngine& e) { e.draft = [](int32_t draft, int position) { return position % 2 == 0 ? (draft + 1) % 60 : draft; }; })},
      {{43}, "the second chunk of a prompt read from a broken cache", {"engine-feature-rows"},
       engine(changes([](std::span<float> t, int position) {
         if (position >= 8 && position < 16) rotate(t);
       }))},
      {{49}, "the drafter's sliding window run as full attention", {"engine-sliding-window"},
       engine(spec([](DraftSpec& s) { s.sliding_window = 0; }), {[](DraftSpec& s) { s.sliding_window = 6; }})},
      {{54}, "keys of rejected drafts kept in the draft cache", {"engine-draft-keys-kept"}, engine([](EmulatedEngine& e) { e.keep_draft_keys = true; })},
      {{55}, "the last position of a cached prefix kept with the next token of another request", {"engine-cache-seam"}, engine([](EmulatedEngine& e) {
         e.said_cached = 3;
         e.token = [](int32_t token, int position) { return position == 2 ? (token + 1) % 60 : token; };
       })},
      {{59}, "the prompt is computed elsewhere and its rows never reach the drafter", {"engine-rows-missing"}, engine([](EmulatedEngine& e) { e.skip_prompt = true; })},
      {{60}, "one request of four is fed zeros", {"engine-feature-rows"}, engine(empty_in_one_of_four())},
      {{61}, "accepted positions are not fed again", {"engine-rows-missing"}, engine([](EmulatedEngine& e) { e.skip_accepted = true; })},
      {{61}, "the states are captured after a norm", {"engine-feature-scaled"}, engine(changes([](std::span<float> t, int) { unit_size(t); }))},
      {{61}, "later draft steps one position too far", {"engine-positions"}, engine([](EmulatedEngine& e) { e.reading.step_offset = 1; })},
      {{61}, "later draft steps stand still", {"engine-positions-stand-still"}, engine([](EmulatedEngine& e) { e.reading.step_stride = 0; })},
      {{61}, "token i beside the state of position i", {"engine-token-shift"}, engine([](EmulatedEngine& e) { e.reading.token_shift = -1; })},
      {{61}, "states one position late", {"engine-feature-late", "engine-token-shift"}, engine([](EmulatedEngine& e) { e.reading.feature_shift = -1; })},
      {{62}, "NaN in the features", {"engine-feature-not-finite"}, engine(changes([](std::span<float> t, int position) {
         if (position == 5) t[0] = std::nanf("");
       }))},
      {{62}, "drafts accepted that are not in the output", {"engine-accepts-too-much"}, engine([](EmulatedEngine& e) {
         e.count = [](int accepted, int drafts) { return std::max(std::min(1, drafts), accepted); };
       })},
      {{62}, "a sampled verification throws right drafts away", {"engine-accepts-too-little", "engine-cycles-with-gaps"}, engine([](EmulatedEngine& e) {
         e.count = [](int accepted, int) { return std::min(accepted, 1); };
       })},
  };
}
// clang-format on

}  // namespace aerie
