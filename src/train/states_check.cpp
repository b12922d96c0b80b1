#include "train/states_check.h"

#include <ATen/ATen.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "formats/boundary.h"
#include "train/fused.h"

namespace aerie::train {
namespace {

constexpr size_t kConversations = 32, kRowsOfEach = 8;
constexpr double kByChance = 0.3;  // of raw states may seem normed, where they are short and of about that length

/// Rows of a few conversations: the token at each, the one after it, and the states.
struct Rows {
  std::vector<int64_t> tokens, next;
  std::vector<float> states;  // [rows, slots, H]
  int slots = 0;
  at::Tensor slot(int i, int64_t hidden) const {
    return at::from_blob(const_cast<float*>(states.data()), {static_cast<int64_t>(tokens.size()), slots, hidden}, at::kFloat).select(1, i);
  }
};

Expected<Rows> sample_rows(const Dataset& data, size_t folder) {
  Rows out;
  std::vector<Conversation> all;
  std::ranges::copy_if(data.told_by(), std::back_inserter(all), [&](const Conversation& c) { return c.folder == folder; });
  const size_t count = std::min(kConversations, all.size());
  for (size_t c = 0; c < count; ++c) {
    AERIE_ASSIGN(const Trace trace, data.read(all[c * all.size() / count]));
    std::vector<size_t> places;
    for (size_t t = 0; t + 1 < trace.length(); ++t) {
      if (trace.mask[t + 1] != 0) places.push_back(t);
    }
    out.slots = trace.slots;
    const size_t taken = std::min(kRowsOfEach, places.size());
    for (size_t i = 0; i < taken; ++i) {
      const size_t t = places[i * places.size() / taken];
      out.tokens.push_back(trace.tokens[t]);
      out.next.push_back(trace.tokens[t + 1]);
      for (int slot = 0; slot < trace.slots; ++slot) {
        for (const uint16_t value : trace.state(t, slot)) out.states.push_back(bf16_to_f32(value));
      }
    }
  }
  return out;
}

at::Tensor view_of(const std::vector<float>& values, at::IntArrayRef shape) {
  return at::from_blob(const_cast<float*>(values.data()), shape, at::kFloat);
}

Status check_taps(const Rows& rows, const Dataset& data, const TargetTensors& target) {
  // A target that is quantised has an embedding a few percent off; a block adds more than that to it.
  constexpr double kSame = 0.1, kAlike = 0.9;
  const int64_t hidden = target.config.hidden;
  const at::Tensor embedding =
      view_of(target.embedding, {target.config.vocab, hidden}).index_select(0, at::tensor(at::ArrayRef<int64_t>(rows.tokens)));
  const at::Tensor length = embedding.norm(2, 1).clamp_min(1e-12);
  for (size_t i = 0; i < data.taps().size(); ++i) {
    const int tap = data.taps()[i];
    const at::Tensor state = rows.slot(static_cast<int>(i), hidden);
    const double off = ((state - embedding).norm(2, 1) / length).median().item<double>();
    const double cosine = ((state * embedding).sum(1) / length / state.norm(2, 1).clamp_min(1e-12)).median().item<double>();
    if (tap != 0 && off < kSame) {
      return invalid_argument(
          "stored state {} is called {}, but it is the target's embedding of the tokens, boundary 0 (they differ by {:.1f} %): the layers "
          "of "
          "the data are others than was said; a drafter that is served with {} would read states that it never saw",
          i, boundary_name(tap), 100 * off, boundary_name(tap));
    }
    if (tap == 0 && cosine < kAlike) {
      return invalid_argument(
          "stored state {} is called boundary 0, the target's embedding of the tokens, but it is not (their cosine is {:.2f}): the layers "
          "of "
          "the data are others than was said",
          i, cosine);
    }
  }
  return {};
}

/// The share of rows of which state / weight has a root mean square of 1.
double normed_share(const at::Tensor& states, const at::Tensor& weight) {
  constexpr double kTolerance = 0.02;  // bf16 rounds each value by up to 0.4 %
  const at::Tensor kept = weight.nonzero().squeeze(1);
  const at::Tensor ratio = states.index_select(1, kept) / weight.index_select(0, kept);
  const at::Tensor rms = ratio.square().mean(1).sqrt();
  return ((rms - 1).abs() < kTolerance).to(at::kDouble).mean().item<double>();
}

}  // namespace

Expected<StatesCheck> check_states(const Dataset& data, const TargetTensors& target) {
  const at::NoGradGuard no_grad;
  const int64_t hidden = target.config.hidden;
  const at::Tensor weight = view_of(target.final_norm, {hidden}), head = view_of(target.output_matrix(), {target.config.vocab, hidden});
  StatesCheck out;
  int normed_folders = 0, folders = 0;
  double right = 0;
  for (size_t folder = 0; folder < data.folders(); ++folder) {
    AERIE_ASSIGN(const Rows rows, sample_rows(data, folder));
    if (rows.tokens.empty()) continue;  // all of it is held out, or left out
    AERIE_TRY(check_taps(rows, data, target));
    out.rows += static_cast<int>(rows.tokens.size());
    if (data.teacher() != target.config.blocks) continue;
    at::Tensor states = rows.slot(rows.slots - 1, hidden).contiguous();
    const double share = normed_share(states, weight);
    const bool normed = share > 0.9;
    if (!normed && share > kByChance) {
      return invalid_argument(
          "{:.0f} % of the final states looked at in folder {} of the data are after the target's final norm and the others "
          "before it: they are of two kinds",
          100 * share, folder + 1);
    }
    const StateSlot::Norm said = data.final_norm(folder);
    if (said != StateSlot::Norm::kUnknown && normed != (said == StateSlot::Norm::kNormed)) {
      spdlog::warn(
          "the final states of a folder of {} should be {} the target's final norm, but these are {} it: they are taken as they are",
          data.format(), normed ? "before" : "after", normed ? "after" : "before");
    }
    ++folders;
    normed_folders += normed ? 1 : 0;
    if (!normed) states = rms_norm(states, weight, target.config.rms_eps);
    const at::Tensor words = at::matmul(states, head.t()).argmax(1);
    right += (words == at::tensor(at::ArrayRef<int64_t>(rows.next))).sum().item<double>();
  }
  if (normed_folders != 0 && normed_folders != folders) {
    return invalid_argument(
        "the final states of {} of {} folders are after the target's final norm and those of the others before it: they "
        "cannot be trained on together",
        normed_folders, folders);
  }
  out.final_normed = normed_folders > 0;
  if (data.teacher() == target.config.blocks && out.rows > 0) out.on_policy = right / out.rows;
  return out;
}

void report_on_policy(const StatesCheck& check) {
  constexpr double kGreedy = 0.9, kOwn = 0.5;  // sampling at temperature 1 keeps well above a half
  if (check.on_policy >= kGreedy) return;
  const std::string share = fmt::format("{:.0f} % of {} answer tokens are what the target's head thinks most likely over the stored states",
                                        100 * check.on_policy, check.rows);
  if (check.on_policy >= kOwn) {
    spdlog::info("the data: {}: the answers were sampled, or not all of them are the target's own", share);
  } else {
    spdlog::warn(
        "the data: only {}: the answers are not the target's own words, or the states are not its final ones. A drafter is accepted where "
        "it "
        "guesses the target's words: have the target write the answers",
        share);
  }
}

}  // namespace aerie::train
