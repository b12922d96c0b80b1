// Faults in how a drafter's files are read, which a replay of stored states shows.
#include "diagnosis.h"
#include "table.h"

namespace aerie {
namespace {

constexpr unsigned kSeed = 7;

using Change = std::function<void(Reading&)>;
using Prepare = std::function<void(DraftSpec&)>;

/// The trace is written by the drafter as prepared; the doctor is given the reading with the fault.
std::function<std::vector<Finding>()> misread(const Change& fault, const Prepare& prepare = nullptr, const Change& truth_too = nullptr) {
  return [=] {
    DraftSpec spec = drawn_spec();
    if (prepare) prepare(spec);
    Reading truth = true_reading(spec);
    if (truth_too) truth_too(truth);
    return diagnose(drawn_checkpoint(spec, kSeed), truth, fault, {}).findings;
  };
}

std::function<std::vector<Finding>()> taps(const std::vector<int>& declared, const std::vector<int>& trained) {
  return misread([declared](Reading& r) { set_taps(r, declared); }, [trained](DraftSpec& s) { s.taps = trained; });
}

/// The drafter was trained with the target's table, its files hold another one.
std::function<std::vector<Finding>()> table_of_target(bool head) {
  return [head] {
    DraftSpec spec = drawn_spec();
    spec.draft_vocab = spec.vocab;
    spec.d2t.clear();
    const DraftCheckpoint checkpoint = drawn_checkpoint(spec, kSeed);
    Reading truth = true_reading(spec);
    (head ? truth.spec.own_head : truth.spec.own_embedding) = false;
    const auto fault = [head](Reading& r) { (head ? r.spec.own_head : r.spec.own_embedding) = true; };
    return diagnose(checkpoint, truth, fault, {}, {}, drawn_target(spec, 3)).findings;
  };
}

/// Conversations of random tokens over states of a given size.
Sample random_sample(const DraftSpec& spec, double growth, bool with_prompt) {
  Sample out;
  out.slots = drawn_slots();
  out.hidden = spec.target_hidden;
  std::mt19937 random(4);
  for (int c = 0; c < 8; ++c) {
    Conversation& conversation = out.conversations.emplace_back();
    Trace& trace = conversation.trace;
    trace.slots = static_cast<int>(out.slots.size());
    trace.hidden = out.hidden;
    trace.states = drawn_states(40, out.hidden, random);
    for (size_t t = 0; t < 40; ++t) {
      trace.tokens.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(spec.vocab)));
      trace.mask.push_back(t >= 4 || !with_prompt ? 1 : 0);
      for (size_t s = 0; s < out.slots.size(); ++s) {
        for (size_t i = 0; i < static_cast<size_t>(out.hidden); ++i) {
          uint16_t& value = trace.states[(t * out.slots.size() + s) * static_cast<size_t>(out.hidden) + i];
          value = f32_to_bf16(bf16_to_f32(value) * static_cast<float>(std::pow(growth, static_cast<double>(s))));
        }
      }
    }
  }
  return out;
}

std::vector<Finding> findings_of_sample(const DraftSpec& spec, bool with_prompt) {
  const Sample drawn = random_sample(spec, 1, with_prompt);
  const auto sample = take_sample(DrawnTrace(drawn.slots, drawn.hidden, drawn.conversations), spec, {});
  return sample.ok() ? sample->findings : std::vector<Finding>{{Severity::kError, "trace-refused", sample.status().message(), ""}};
}

}  // namespace

// clang-format off
std::vector<TableRow> replay_faults() {
  const auto offsets_taken_for_ids = [](Reading& r) {
    for (size_t d = 0; d < r.spec.d2t.size(); ++d) r.spec.d2t[d] -= static_cast<int32_t>(d);
  };
  const auto spread_vocabulary = [](DraftSpec& s) {
    s.draft_vocab = 19;
    s.d2t.resize(19);
    for (int32_t d = 0; d < 19; ++d) s.d2t[static_cast<size_t>(d)] = 2 * d + 3;
  };
  return {
      {{1}, "one added to ids that are boundaries already", {"wrong-taps"}, taps({2, 5, 8}, {1, 4, 7})},
      {{3}, "ids of block outputs read as boundaries", {"wrong-taps"}, taps({1, 4, 7}, {2, 5, 8})},
      {{5, 6}, "the converter wrote default ids (2, N/2, N-3) for the trained ones", {"wrong-taps"}, taps({2, 4, 5}, {1, 4, 7})},
      {{8}, "the middle id is N/2 in one program and N/2 - 1 in the other", {"wrong-taps"}, taps({1, 5, 7}, {1, 4, 7})},
      {{10}, "trained on (embedding, early, middle), read as (early, middle, late)", {"wrong-taps"}, taps({1, 4, 8}, {0, 1, 4})},
      {{14}, "norm_output: fed back before the norm, trained after it", {"wrong-feedback"}, misread([](Reading& r) { r.spec.feedback = Feedback::kPreNorm; })},
      {{15}, "norm_before_fc not taken over", {"wrong-feature-norm"}, misread([](Reading& r) { r.spec.feature_norm = FeatureNorm::kNone; })},
      {{20}, "states that grow with depth, and no norm before fc", {"states-of-unlike-size"},
       [] {
         DraftSpec spec = drawn_spec();
         spec.feature_norm = FeatureNorm::kNone;
         return judge_sizes(random_sample(spec, 3, true), spec, std::vector<int>{1, 3, 5});
       }},
      {{21}, "norm_before_residual absent, taken for true", {"wrong-norm-before-residual"}, misread([](Reading& r) { r.spec.norm_before_residual = true; })},
      {{21}, "norm_before_residual true in training, false in the files", {"wrong-norm-before-residual"},
       misread([](Reading& r) { r.spec.norm_before_residual = false; }, [](DraftSpec& s) { s.norm_before_residual = true; })},
      {{23}, "3.1's feedback asked of a classic drafter", {"wrong-feedback"},
       misread([](Reading& r) { r.spec.feedback = Feedback::kPostNorm; }, [](DraftSpec& s) { s.feedback = Feedback::kPreNorm; })},
      {{28}, "lm_head absent and left random, where the target's was meant", {"wrong-own-head"}, table_of_target(true)},
      {{31}, "the exported embedding is random, trained was the target's", {"wrong-own-embedding"}, table_of_target(false)},
      {{36}, "d2t of target ids in place of offsets", {"wrong-d2t"}, misread(offsets_taken_for_ids, spread_vocabulary)},
      {{36}, "d2t cut to the first ids in order", {"wrong-d2t"}, misread([](Reading& r) { std::reverse(r.spec.d2t.begin(), r.spec.d2t.end()); })},
      {{39}, "the draft vocabulary covers little of what the target writes", {"draft-vocab-covers-little"},
       [] {
         DraftSpec spec = drawn_spec();
         spec.draft_vocab = 10;
         spec.d2t.resize(10);
         return judge_coverage(diagnose(drawn_checkpoint(spec, kSeed), true_reading(spec), [](Reading&) {}, {}).result);
       }},
      {{39}, "a trace of another target's vocabulary", {"trace-refused"},
       [] {
         DraftSpec spec = drawn_spec();
         const Sample drawn = random_sample(spec, 1, true);
         spec.vocab = 45;
         const auto sample = take_sample(DrawnTrace(drawn.slots, drawn.hidden, drawn.conversations), spec, {});
         return std::vector<Finding>{{Severity::kError, sample.ok() ? "trace-read" : "trace-refused", "", ""}};
       }},
      {{44}, "rope_scaling dropped in conversion", {"wrong-rope-scaling"},
       misread([](Reading& r) { r.spec.rope_scaling = {}; }, [](DraftSpec& s) { s.rope_scaling = {RopeScalingKind::kLinear, 4.0f}; })},
      {{45}, "a sliding window that training had not", {"wrong-sliding-window"}, misread([](Reading& r) { r.spec.sliding_window = 4; })},
      {{46}, "served beyond the positions that it was trained for", {"beyond-trained-positions"},
       [] {
         DraftSpec spec = drawn_spec();
         spec.max_positions = 32;
         return findings_of_sample(spec, true);
       }},
      {{47}, "rope_theta exported as a class default", {"wrong-rope-theta"},
       misread([](Reading& r) { r.spec.rope_theta = 100.0f; }, [](DraftSpec& s) { s.rope_theta = 1e6f; })},
      {{51}, "weights that learned other text than the target writes", {"poor-in-every-reading"},
       [] {
         DraftSpec spec = drawn_spec();
         ThreadPool pool(1);
         const auto source = draw_trace(drawn_checkpoint(spec, 1), true_reading(spec), {}, pool);
         const DraftCheckpoint other = drawn_checkpoint(spec, 2);
         const Sample sample = take_sample(*source, spec, {}).value();
         auto scorer = ReadingScorer::create(other, true_reading(spec), drawn_tables(spec), {}, sample, kernels::best_kernels(), pool).value();
         HypothesisFacts facts;
         facts.slots = sample.slots;
         facts.blocks = kDrawnBlocks;
         return verdict(search_hypotheses(scorer, true_reading(spec), facts, {}).value(), 3);
       }},
      {{52}, "a template without generation tags: every token is marked", {"mask-is-all-ones"}, [] { return findings_of_sample(drawn_spec(), false); }},
      {{61}, "token i beside the state of position i", {"wrong-token-shift"}, misread([](Reading& r) { r.token_shift = 0; }, nullptr, [](Reading& r) { r.token_shift = -1; })},
  };
}
// clang-format on

}  // namespace aerie
