#include "doctor/tap_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "kernels/kernels.h"

namespace aerie {
namespace {

using Choice = std::vector<int>;  // numbers of states, one for each tap

/// Rows [begin, end) of a conversation, of which those from `first` on count.
struct Piece {
  size_t conversation = 0;
  int begin = 0, first = 0, end = 0;
  int rows() const { return end - begin; }
};

std::vector<Piece> find_pieces(const Sample& sample, std::span<const size_t> conversations, const TapSearchOptions& options) {
  std::vector<std::vector<Piece>> by_conversation;
  for (const size_t c : conversations) {
    const Trace& trace = sample.conversations[c].trace;
    const std::vector<ReplayStart> starts = find_starts(trace.mask, 1);
    std::vector<Piece>& own = by_conversation.emplace_back();
    for (size_t at = 0; at < starts.size();) {
      const int first = starts[at].row;
      Piece piece{c, std::max(0, first - options.context), first, first};
      for (; at < starts.size() && piece.end - first < options.rows_per_piece && starts[at].row == piece.end; ++at) ++piece.end;
      own.push_back(piece);
    }
  }
  // One of each conversation in turn, so that every beginning of the list is of as many conversations as can be.
  std::vector<Piece> out;
  for (size_t round = 0; out.size() < static_cast<size_t>(options.pieces); ++round) {
    bool any = false;
    for (std::vector<Piece>& own : by_conversation) {
      if (round >= own.size()) continue;
      any = true;
      // Not its pieces in order: openings of answers are all alike.
      out.push_back(own[(round * 5 + own.size() / 2) % own.size()]);
      if (out.size() == static_cast<size_t>(options.pieces)) break;
    }
    if (!any) break;
  }
  return out;
}

/// Every state of the pieces' rows through every slot's columns of fc.
class Projections {
 public:
  static Expected<Projections> make(ReadingScorer& scorer, const Reading& base, std::span<const SlotUse> states,
                                    std::span<const Piece> pieces) {
    Projections out(base.spec);
    AERIE_TRY(out.read_weights(scorer.checkpoint(), base));
    for (const Piece& piece : pieces) out.rows_ += static_cast<size_t>(piece.rows());
    const size_t width = static_cast<size_t>(base.spec.target_hidden), hidden = static_cast<size_t>(base.spec.hidden);
    out.projected_.resize(states.size() * out.taps_ * out.rows_ * hidden);
    out.mean_squares_.resize(states.size() * out.rows_);
    std::vector<uint16_t> stored(width);
    std::vector<float> plain(out.rows_ * width);
    CpuOps& ops = scorer.ops();
    for (size_t s = 0; s < states.size(); ++s) {
      size_t row = 0;
      for (const Piece& piece : pieces) {
        const Trace& trace = scorer.sample().conversations[piece.conversation].trace;
        for (int r = 0; r < piece.rows(); ++r, ++row) {
          const int position = std::clamp(piece.begin + r + base.feature_shift, 0, static_cast<int>(trace.length()) - 1);
          scorer.state(trace, static_cast<size_t>(position), states[s], stored.data());
          std::transform(stored.begin(), stored.end(), plain.begin() + static_cast<std::ptrdiff_t>(row * width), bf16_to_f32);
          double squares = 0;
          for (size_t c = 0; c < width; ++c) squares += static_cast<double>(plain[row * width + c]) * plain[row * width + c];
          out.mean_squares_[s * out.rows_ + row] = squares / static_cast<double>(width);
        }
      }
      for (size_t i = 0; i < out.taps_; ++i) out.project(ops, plain, s, i);
    }
    return out;
  }

  /// h [rows, H] of rows [0, rows) for a choice.
  void fuse(const Choice& choice, size_t rows, std::vector<float>& h) const {
    const size_t hidden = static_cast<size_t>(spec_.hidden);
    h.assign(rows * hidden, 0.0f);
    for (size_t r = 0; r < rows; ++r) {
      float* to = h.data() + r * hidden;
      double squares = 0;
      for (size_t i = 0; i < taps_; ++i) {
        const size_t s = static_cast<size_t>(choice[i]);
        squares += mean_squares_[s * rows_ + r];
        const float* from = projected_.data() + ((s * taps_ + i) * rows_ + r) * hidden;
        for (size_t c = 0; c < hidden; ++c) to[c] += from[c];
      }
      const double scale =
          spec_.feature_norm == FeatureNorm::kConcat ? 1.0 / std::sqrt(squares / static_cast<double>(taps_) + spec_.rms_eps) : 1.0;
      for (size_t c = 0; c < hidden; ++c) to[c] = to[c] * static_cast<float>(scale) + (bias_.empty() ? 0.0f : bias_[c]);
    }
  }

 private:
  explicit Projections(const DraftSpec& spec) : spec_(spec), taps_(spec.taps.size()) {}

  Status read_weights(const DraftCheckpoint& checkpoint, const Reading& base) {
    const size_t width = static_cast<size_t>(spec_.target_hidden), hidden = static_cast<size_t>(spec_.hidden);
    const auto vector = [&](const std::string& name) -> Expected<std::vector<float>> {
      if (const auto it = base.norms.find(name); it != base.norms.end()) return it->second;
      const auto it = checkpoint.tensors.find(name);
      if (it == checkpoint.tensors.end()) return internal_error("the drafter's tensor {} is missing", name);
      return to_float(it->second);
    };
    scale_.assign(taps_ * width, 1.0f);
    if (spec_.feature_norm == FeatureNorm::kConcat) {
      AERIE_ASSIGN(scale_, vector("input_norm"));
    } else if (spec_.feature_norm == FeatureNorm::kPerTap) {
      for (size_t i = 0; i < taps_; ++i) {
        AERIE_ASSIGN(const std::vector<float> part, vector("fc_norm." + std::to_string(i)));
        std::copy(part.begin(), part.end(), scale_.begin() + static_cast<std::ptrdiff_t>(i * width));
      }
    }
    if (!spec_.has_fc) return {};
    if (spec_.fc_bias) {
      AERIE_ASSIGN(bias_, vector("fc_bias"));
    }
    const auto fc = checkpoint.tensors.find("fc");
    if (fc == checkpoint.tensors.end()) return internal_error("the drafter's tensor fc is missing");
    const TensorView& tensor = fc->second;
    const uint64_t row_bytes = tensor.cols() * static_cast<uint64_t>(block_bytes(tensor.type));
    for (size_t i = 0; i < taps_; ++i) {
      fc_.emplace_back(kernels::TileFormat::kBf16, static_cast<int>(hidden), static_cast<int>(width));
      if (fc_.back().empty()) return resource_error("no memory for a copy of fc");
    }
    std::vector<float> row(tensor.cols());
    std::vector<uint16_t> rounded(tensor.cols());
    for (size_t r = 0; r < hidden; ++r) {
      AERIE_TRY(dequantize(tensor.type, tensor.data.data() + r * row_bytes, row.size(), row.data()));
      std::transform(row.begin(), row.end(), rounded.begin(), f32_to_bf16);
      for (size_t i = 0; i < taps_; ++i) kernels::pack_row_bf16(fc_[i], static_cast<int>(r), rounded.data() + i * width);
    }
    return {};
  }

  void project(CpuOps& ops, const std::vector<float>& plain, size_t s, size_t i) {
    ops.reset();
    const int width = spec_.target_hidden;
    const CpuTensor x = ops.tensor(static_cast<int>(rows_), width);
    for (int r = 0; r < x.rows; ++r) {
      const double mean = mean_squares_[s * rows_ + static_cast<size_t>(r)];
      const float scale = spec_.feature_norm == FeatureNorm::kPerTap ? static_cast<float>(1.0 / std::sqrt(mean + spec_.rms_eps)) : 1.0f;
      for (int c = 0; c < width; ++c) {
        const size_t column = static_cast<size_t>(c);
        x.row(r)[c] =
            plain[static_cast<size_t>(r) * static_cast<size_t>(width) + column] * scale * scale_[i * static_cast<size_t>(width) + column];
      }
    }
    const CpuTensor y = spec_.has_fc ? ops.linear(x, fc_[i]) : x;
    const size_t hidden = static_cast<size_t>(spec_.hidden);
    for (int r = 0; r < y.rows; ++r) {
      std::copy_n(y.row(r), hidden, projected_.data() + ((s * taps_ + i) * rows_ + static_cast<size_t>(r)) * hidden);
    }
  }

  const DraftSpec& spec_;
  size_t taps_, rows_ = 0;
  std::vector<float> scale_, bias_;        // the feature norm's weights [k*Ht], fc's bias [H]
  std::vector<kernels::PackedMatrix> fc_;  // k x [H, Ht]
  std::vector<float> projected_;           // [states, k, rows, H]
  std::vector<double> mean_squares_;       // [states, rows]
};

/// The mean log-probability of the next tokens for one choice after another.
class Judge {
 public:
  Judge(ReadingScorer& scorer, const Reading& base, const Drafter& drafter, std::span<const Piece> pieces, const Projections& projections)
      : scorer_(scorer),
        base_(base),
        drafter_(drafter),
        pieces_(pieces),
        projections_(projections),
        to_draft_(invert_d2t(drafter.spec())) {}

  double log_likelihood(const Choice& choice, size_t pieces) {
    std::vector<DraftKv> caches;
    caches.reserve(pieces);
    rows_.clear();
    counted_.clear();
    wanted_.clear();
    for (size_t p = 0; p < pieces; ++p) {
      const Piece& piece = pieces_[p];
      const std::vector<int32_t>& tokens = scorer_.sample().conversations[piece.conversation].trace.tokens;
      caches.push_back(drafter_.new_kv());
      for (int row = piece.begin; row < piece.end; ++row) {
        if (row >= piece.first) {
          counted_.push_back(rows_.size());
          wanted_.push_back(to_draft_[static_cast<size_t>(tokens[static_cast<size_t>(row + 2)])]);
        }
        rows_.push_back({tokens[static_cast<size_t>(row + 1 + base_.token_shift)], row, &caches.back()});
      }
    }
    projections_.fuse(choice, rows_.size(), h_);
    drafter_.step(scorer_.ops(), rows_, h_.data(), states_);
    const size_t vocab = static_cast<size_t>(drafter_.spec().draft_vocab), hidden = static_cast<size_t>(drafter_.spec().hidden);
    head_inputs_.clear();
    for (const size_t r : counted_) {
      const auto at = states_.head_input.begin() + static_cast<std::ptrdiff_t>(r * hidden);
      head_inputs_.insert(head_inputs_.end(), at, at + static_cast<std::ptrdiff_t>(hidden));
    }
    const size_t n = counted_.size();
    logits_.resize(n * vocab);
    drafter_.logits(scorer_.ops(), head_inputs_.data(), static_cast<int>(n), logits_.data());
    std::vector<double> logs(n, 0.0);
    scorer_.ops().pool().parallel_for(n, 4, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r)
        logs[r] = wanted_[r] < 0 ? 0.0 : log_probability({logits_.data() + r * vocab, vocab}, wanted_[r]);
    });
    double sum = 0;
    size_t covered = 0;
    for (size_t r = 0; r < n; ++r) {
      sum += logs[r];
      covered += wanted_[r] >= 0 ? 1 : 0;
    }
    return covered == 0 ? 0.0 : sum / static_cast<double>(covered);
  }

 private:
  static double log_probability(std::span<const float> logits, int32_t wanted) {
    const float most = *std::max_element(logits.begin(), logits.end());
    float sum = 0;
    for (const float logit : logits) sum += std::exp(logit - most);
    const double out = static_cast<double>(logits[static_cast<size_t>(wanted)]) - most - std::log(sum);
    // Being surer of another token than chance is does not count more: a drafter fed with the wrong states is often sure of nonsense.
    const double chance = -std::log(static_cast<double>(logits.size()));
    return std::isfinite(out) ? std::max(out, chance) : chance;
  }

  ReadingScorer& scorer_;
  const Reading& base_;
  const Drafter& drafter_;
  std::span<const Piece> pieces_;
  const Projections& projections_;
  std::vector<int32_t> to_draft_;
  std::vector<DraftRow> rows_;
  std::vector<size_t> counted_;  // of rows_
  std::vector<int32_t> wanted_;  // draft ids, -1 outside the draft vocabulary; one for each of counted_
  DraftStates states_;
  std::vector<float> h_, head_inputs_, logits_;
};

/// n (n-1) ... (n-k+1), or `most` + 1 where it is more.
size_t ordered_choices(size_t n, size_t k, size_t most) {
  if (k > n) return 0;
  size_t out = 1;
  for (size_t i = 0; i < k; ++i) {
    if (out > most) return most + 1;
    out *= n - i;
  }
  return std::min(out, most + 1);
}

void all_choices(int n, size_t k, Choice& choice, std::vector<Choice>& out) {
  if (choice.size() == k) {
    out.push_back(choice);
    return;
  }
  for (int s = 0; s < n; ++s) {
    if (std::find(choice.begin(), choice.end(), s) != choice.end()) continue;
    choice.push_back(s);
    all_choices(n, k, choice, out);
    choice.pop_back();
  }
}

/// What lies one exchange or one swap away, and every run of states in their order, forwards and backwards.
std::vector<Choice> choices_near(const Choice& from, int n) {
  std::set<Choice> out = {from};
  for (size_t i = 0; i < from.size(); ++i) {
    for (int s = 0; s < n; ++s) {
      Choice next = from;
      // A state that is there already changes places with the one that leaves.
      if (const auto at = std::find(next.begin(), next.end(), s); at != next.end()) *at = next[i];
      next[i] = s;
      out.insert(next);
    }
  }
  for (int first = 0; first + static_cast<int>(from.size()) <= n; ++first) {
    Choice run(from.size());
    std::iota(run.begin(), run.end(), first);
    out.insert(run);
    std::reverse(run.begin(), run.end());
    out.insert(run);
  }
  return {out.begin(), out.end()};
}

}  // namespace

Expected<TapSearchResult> search_taps(ReadingScorer& scorer, const Reading& base, std::span<const SlotUse> states,
                                      std::span<const size_t> conversations, const TapSearchOptions& options) {
  TapSearchResult out;
  const size_t taps = base.feature.size();
  Choice declared;
  for (const SlotUse& use : base.feature)
    declared.push_back(static_cast<int>(std::find(states.begin(), states.end(), use) - states.begin()));
  out.possible = ordered_choices(states.size(), taps, size_t{1} << 40);
  if (taps == 0 || taps > states.size() || std::find(declared.begin(), declared.end(), static_cast<int>(states.size())) != declared.end())
    return out;

  TapSearchOptions bounded = options;
  const uint64_t row_bytes = states.size() * taps * static_cast<uint64_t>(base.spec.hidden) * sizeof(float);
  bounded.pieces = static_cast<int>(std::min<uint64_t>(
      static_cast<uint64_t>(options.pieces),
      std::max<uint64_t>(4, options.max_bytes / (row_bytes * static_cast<uint64_t>(options.rows_per_piece + options.context)))));
  const std::vector<Piece> pieces = find_pieces(scorer.sample(), conversations, bounded);
  if (pieces.empty()) return out;
  AERIE_ASSIGN(const Drafter drafter, scorer.drafter(base));
  AERIE_ASSIGN(const Projections projections, Projections::make(scorer, base, states, pieces));
  Judge judge(scorer, base, drafter, pieces, projections);

  struct Ranked {
    Choice choice;
    double log_likelihood = 0;
  };
  std::vector<Ranked> ranked;
  const auto rank = [&](size_t count) {
    for (Ranked& r : ranked) r.log_likelihood = judge.log_likelihood(r.choice, count);
    std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.log_likelihood > b.log_likelihood; });
  };
  const size_t first_count = std::min<size_t>(pieces.size(), 4);
  if (out.possible <= options.most_choices) {
    std::vector<Choice> all;
    Choice empty;
    all_choices(static_cast<int>(states.size()), taps, empty, all);
    for (Choice& choice : all) ranked.push_back({std::move(choice), 0});
    rank(first_count);
    out.tried = ranked.size();
  } else {
    std::set<Choice> seen;
    std::vector<Choice> frontier = {declared};
    for (int sweep = 0; sweep < 6 && seen.size() < options.most_choices; ++sweep) {
      for (const Choice& from : frontier) {
        for (Choice& choice : choices_near(from, static_cast<int>(states.size()))) {
          if (seen.insert(choice).second) ranked.push_back({choice, judge.log_likelihood(choice, first_count)});
        }
      }
      std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.log_likelihood > b.log_likelihood; });
      frontier.clear();
      for (size_t i = 0; i < std::min<size_t>(4, ranked.size()); ++i) frontier.push_back(ranked[i].choice);
    }
    out.tried = seen.size();
  }
  // Two more rounds, each with more rows for fewer choices.
  for (const auto& [share, keep] : {std::pair{size_t{3}, 4 * options.keep}, std::pair{size_t{1}, 2 * options.keep}}) {
    ranked.resize(std::min(ranked.size(), keep));
    rank(std::max(first_count, pieces.size() / share));
  }
  ranked.resize(std::min(ranked.size(), options.keep));
  for (const Ranked& r : ranked) {
    TapChoice& choice = out.best.emplace_back();
    for (const int s : r.choice) choice.feature.push_back(states[static_cast<size_t>(s)]);
    choice.log_likelihood = r.log_likelihood;
  }
  for (const Piece& piece : pieces) out.rows += piece.end - piece.first;
  return out;
}

}  // namespace aerie
