#include "doctor/engine_check.h"

#include <algorithm>

#include "doctor/breakdown.h"
#include "doctor/engine_features.h"

namespace aerie {
namespace {

constexpr double kAgree = 0.97;        // share of agreement that other kernels and roundings leave at least
constexpr double kExplains = 0.95;     // share from which another reading is named for the cause
constexpr int kMostRequests = 10'000;  // conversations that are looked through for the requests' states

/// "37 of 40".
std::string of(const EngineStage& stage) { return fmt::format("{} of {}", stage.agreed, stage.compared); }

/// The drafter's forward over the rows that the engine fed it: the drafts of every cycle beside the engine's own.
struct Forward {
  EngineStage first{"first drafts", 0, 0, "first drafts of a cycle that are what these weights draft on the engine's own rows"};
  EngineStage later{"later drafts", 0, 0, "later drafts that are what these weights draft after the same first ones"};
  EngineStage opening{"", 0, 0, ""};  // first drafts of each request's first cycle
};

class ForwardRunner {
 public:
  ForwardRunner(const Drafter& drafter, CpuOps& ops, bool keep_draft_keys)
      : drafter_(drafter), ops_(ops), keep_(keep_draft_keys), hidden_(static_cast<size_t>(drafter.spec().hidden)) {}

  void run(const EngineRequest& request, std::span<const uint16_t> features, Forward& out) {
    DraftKv kv = drafter_.new_kv();
    int base = 0;  // position of the cache's first row
    size_t row = 0, step = 0;
    const size_t width = static_cast<size_t>(request.width);
    for (size_t c = 0; c < request.cycles.size(); ++c) {
      const size_t first = row;
      while (row < request.rows.size() && request.rows[row].cycle <= static_cast<int32_t>(c)) ++row;
      for (size_t r = first; r < row; ++r) {
        const EngineRow& fed = request.rows[r];
        const int next = base + kv.length();
        if (kv.length() == 0 || fed.position > next || fed.position < base) {
          kv.truncate(0);
          base = fed.position;
        } else if (fed.position < next && !keep_) {
          kv.truncate(fed.position - base);
        }
        const DraftRow one{fed.token, fed.position, &kv};
        drafter_.step0(ops_, {&one, 1}, features.data() + r * width, states_);
      }
      if (row == first) continue;  // nothing was drafted
      compare(request, c, kv, step, out);
    }
  }

 private:
  void compare(const EngineRequest& request, size_t c, DraftKv& kv, size_t& step, Forward& out) {
    const std::vector<int32_t>& drafts = request.cycles[c].drafts;
    const int kept = kv.length();
    while (step < request.steps.size() && request.steps[step].cycle < static_cast<int32_t>(c)) ++step;
    bool same = true;
    for (size_t s = 0; s < drafts.size() && same; ++s) {
      if (s > 0) {
        const size_t at = step + s;
        if (at >= request.steps.size() || request.steps[at].cycle != static_cast<int32_t>(c)) break;
        const DraftRow one{request.steps[at].token, request.steps[at].position, &kv};
        const std::vector<float> h(states_.feedback.begin(), states_.feedback.begin() + static_cast<std::ptrdiff_t>(hidden_));
        drafter_.step(ops_, {&one, 1}, h.data(), states_);
      }
      int32_t word = -1;
      drafter_.argmax(ops_, states_.head_input.data(), 1, &word);
      same = word == drafts[s];
      EngineStage& stage = s == 0 ? out.first : out.later;
      ++stage.compared;
      stage.agreed += same ? 1 : 0;
      if (s == 0 && c == 0) {
        ++out.opening.compared;
        out.opening.agreed += same ? 1 : 0;
      }
    }
    if (!keep_) kv.truncate(kept);
  }

  const Drafter& drafter_;
  CpuOps& ops_;
  const bool keep_;
  const size_t hidden_;
  DraftStates states_;
};

class Comparer {
 public:
  Comparer(const std::vector<EngineCase>& cases, ReadingScorer& scorer, const Reading& reading, const HypothesisFacts& facts)
      : cases_(cases), scorer_(scorer), reading_(reading), facts_(facts) {}

  Expected<EngineComparison> run() {
    count();
    if (!check_sizes()) return std::move(out_);
    if (!check_features() || !check_tokens() || !check_rows() || !check_steps()) return std::move(out_);
    AERIE_ASSIGN(const bool forward_agrees, check_forward());
    if (!forward_agrees || !check_counts()) return std::move(out_);
    if (out_.cycles > 0) {
      say(Severity::kNote, "engine-as-replayed",
          out_.with_states > 0
              ? "the engine does what the replay does: features, tokens, positions, drafts and accepted counts agree"
              : "the engine drafts what these weights draft on the rows that it feeds them, and counts right; whether the rows are the "
                "target's states cannot be said without stored states of the same tokens",
          out_.with_states > 0 ? "" : "capture these prompts (aerie capture) and give them with --traces");
    }
    return std::move(out_);
  }

 private:
  bool say(Severity severity, const std::string& code, const std::string& text, const std::string& fix) {
    out_.findings.push_back({severity, code, text, fix});
    return false;
  }
  bool fault(const std::string& code, const std::string& text, const std::string& fix) { return say(Severity::kError, code, text, fix); }

  void count() {
    int64_t accepted = 0;
    for (const EngineCase& c : cases_) {
      out_.with_states += c.stored ? 1 : 0;
      out_.cycles += static_cast<int64_t>(c.request.cycles.size());
      RatioPart& length = out_.length.emplace_back();
      for (const EngineCycle& cycle : c.request.cycles) {
        accepted += cycle.accepted;
        length.sum += cycle.accepted + 1;
        length.count += 1;
        if (out_.accepted.size() < cycle.drafts.size()) out_.accepted.resize(cycle.drafts.size(), std::vector<RatioPart>(cases_.size()));
        for (size_t step = 0; step < cycle.drafts.size(); ++step) {
          RatioPart& part = out_.accepted[step][static_cast<size_t>(&c - cases_.data())];
          part.count += 1;
          part.sum += static_cast<size_t>(cycle.accepted) > step ? 1 : 0;
        }
      }
    }
    if (out_.cycles > 0) out_.acceptance_length = 1 + static_cast<double>(accepted) / static_cast<double>(out_.cycles);
  }

  bool check_sizes() {
    const DraftSpec& spec = reading_.spec;
    for (const EngineCase& c : cases_) {
      if (!c.request.rows.empty() && c.request.width != spec.feature_width()) {
        return fault("engine-feature-width",
                     fmt::format("the engine feeds its drafter rows of {} values, its files call for {} ({} taps of {})", c.request.width,
                                 spec.feature_width(), spec.taps.size(), spec.target_hidden),
                     c.request.width == spec.hidden ? "it hands over one state, as EAGLE-1 wants it: start it with the algorithm EAGLE3"
                                                    : "make the engine capture as many states as the drafter has taps");
      }
      const auto outside = [&](int32_t token) { return token >= spec.vocab; };
      for (const EngineRow& row : c.request.rows) {
        if (outside(row.token))
          return fault("engine-token-range",
                       fmt::format("the engine feeds its drafter the token {}, the target has {}", row.token, spec.vocab), "");
      }
      for (const EngineStep& step : c.request.steps) {
        if (outside(step.token))
          return fault("engine-token-range",
                       fmt::format("the engine feeds its drafter the token {}, the target has {}", step.token, spec.vocab), "");
      }
    }
    return true;
  }

  bool check_features() {
    FeatureMatch match = match_features(cases_, scorer_, reading_, facts_);
    shift_ = match.shift;
    out_.stages.push_back(match.stage);
    const bool fine = match.findings.empty();
    out_.findings.insert(out_.findings.end(), match.findings.begin(), match.findings.end());
    return fine;
  }

  /// Beside the state of position i stands token i + 1.
  bool check_tokens() {
    EngineStage stage{"tokens", 0, 0, "rows that consume the token after their state"};
    const bool knows_states = out_.with_states > 0;
    int best = 1;
    int64_t best_agreed = -1, wrong = 0, at_seam = 0;
    for (const int ahead : {1, 0, 2, -1, 3}) {
      int64_t compared = 0, agreed = 0;
      for (const EngineCase& c : cases_) {
        for (const EngineRow& row : c.request.rows) {
          const int64_t at = static_cast<int64_t>(row.position) + ahead;
          if (at < 0 || at >= static_cast<int64_t>(c.request.tokens.size())) continue;
          const bool right = c.request.tokens[static_cast<size_t>(at)] == row.token;
          ++compared;
          agreed += right ? 1 : 0;
          if (right || ahead != 1 + shift_) continue;
          ++wrong;
          at_seam += c.request.cached > 0 && at == c.request.cached ? 1 : 0;
        }
      }
      if (ahead == 1 + shift_) stage.compared = compared, stage.agreed = agreed;
      if (agreed > best_agreed) best = ahead, best_agreed = agreed;
    }
    out_.stages.push_back(stage);
    if (wrong > 0 && at_seam == wrong) {
      return fault("engine-cache-seam",
                   fmt::format("{} rows at the end of a cached prefix consume another token than the one that follows their state: they "
                               "were computed for another continuation",
                               wrong),
                   "the draft key of position i depends on token i+1: leave the last position of a cached prefix out of the prefix cache");
    }
    if (stage.share() >= kAgree) {
      if (shift_ != 0) {
        say(Severity::kNote, "engine-positions-shifted",
            fmt::format("the engine numbers positions {} further than the states' own; RoPE is relative, so that this changes nothing",
                        -shift_),
            "");
      }
      ahead_ = 1 + shift_;
      return true;
    }
    if (!knows_states && best != 1) {
      return say(Severity::kWarning, "engine-tokens-or-positions",
                 fmt::format("the row at position p consumes token p{:+d}, where p+1 is expected: either its positions are counted "
                             "otherwise, which is harmless, or it stands beside "
                             "the wrong state; without stored states that cannot be told",
                             best),
                 "capture these prompts (aerie capture) and give them with --traces");
    }
    const int against_state = best - shift_;
    if (against_state == 0) {
      return fault("engine-token-shift",
                   fmt::format("token i stands beside the state of position i, where token i+1 belongs ({} rows right)", of(stage)),
                   "shift the drafter's input ids by one to the left");
    }
    if (best != 1 + shift_) {
      return fault("engine-feature-late",
                   fmt::format("token i{:+d} stands beside the state of position i, where token i+1 belongs ({} rows right)", against_state,
                               of(stage)),
                   "pair each token with the state of the position before it");
    }
    return fault("engine-tokens", fmt::format("only {} rows consume the token after their state", of(stage)),
                 "look at which rows they are: after a rejected draft, after a cache hit");
  }

  /// Every position up to the newest token must have been fed, once at least.
  bool check_rows() {
    EngineStage stage{"rows", 0, 0, "positions of the text whose row the drafter was fed"};
    int64_t missing_cached = 0, missing_accepted = 0, missing_prompt = 0;
    for (const EngineCase& c : cases_) {
      std::vector<bool> fed(c.request.tokens.size() + 1, false);
      for (const EngineRow& row : c.request.rows) {
        const int64_t at = static_cast<int64_t>(row.position) + ahead_;  // the token that it consumed
        if (at >= 0 && at < static_cast<int64_t>(fed.size())) fed[static_cast<size_t>(at)] = true;
      }
      int last = -1;  // the newest token of the last cycle that drafted
      for (const EngineCycle& cycle : c.request.cycles) last = cycle.drafts.empty() ? last : cycle.newest;
      for (int t = 1; t <= last; ++t) {
        ++stage.compared;
        if (fed[static_cast<size_t>(t)]) {
          ++stage.agreed;
        } else if (t <= c.request.cached) {
          ++missing_cached;
        } else if (t < c.request.prompt) {
          ++missing_prompt;
        } else {
          ++missing_accepted;
        }
      }
    }
    out_.stages.push_back(stage);
    if (missing_accepted > 0 && static_cast<double>(missing_accepted) > (1 - kAgree) * static_cast<double>(stage.compared)) {
      return fault("engine-rows-missing",
                   fmt::format("{} positions of the answers were never fed to the drafter with the target's states, so that its cache "
                               "holds keys from its own guesses, or none",
                               missing_accepted),
                   "after each verify feed the accepted positions again, with the target's states");
    }
    if (missing_prompt > 0 && static_cast<double>(missing_prompt) > (1 - kAgree) * static_cast<double>(stage.compared)) {
      return fault("engine-rows-missing", fmt::format("{} positions of the prompts were never fed to the drafter", missing_prompt),
                   "feed the drafter every chunk of the prompt");
    }
    if (missing_cached > 0) {
      say(Severity::kNote, "engine-cached-prefix",
          fmt::format("{} positions came from a prefix cache and were not fed to the drafter in this trace: whether its own cache holds "
                      "them the later stages show",
                      missing_cached),
          "");
    }
    return true;
  }

  bool check_steps() {
    EngineStage stage{"positions of the steps", 0, 0,
                      "later draft steps that stand one position further each, and consume the draft before"};
    int64_t still = 0, others = 0, tokens = 0;
    for (const EngineCase& c : cases_) {
      const std::vector<EngineStep>& steps = c.request.steps;
      size_t begin = 0;
      for (size_t i = 0; i < steps.size(); ++i) {
        if (steps[i].step == 0 || i == 0) begin = i;
        if (steps[i].step == 0 || steps[begin].step != 0 || steps[begin].cycle != steps[i].cycle) continue;
        ++stage.compared;
        const int ahead = steps[i].position - steps[begin].position;
        const auto& drafts = c.request.cycles[static_cast<size_t>(steps[i].cycle)].drafts;
        const size_t before = static_cast<size_t>(steps[i].step) - 1;
        const bool token = before < drafts.size() && drafts[before] == steps[i].token;
        still += ahead == 0 ? 1 : 0;
        others += ahead != steps[i].step ? 1 : 0;
        tokens += token ? 0 : 1;
        stage.agreed += token && ahead == steps[i].step ? 1 : 0;
      }
    }
    out_.stages.push_back(stage);
    if (stage.share() >= kAgree) return true;
    if (still * 2 > stage.compared) {
      return fault("engine-positions-stand-still",
                   fmt::format("the later draft steps stand at the position of the first ({} of {})", still, stage.compared),
                   "count the position up at every draft step");
    }
    if (others > tokens) {
      return fault("engine-positions",
                   fmt::format("{} of {} later draft steps do not stand one position further each", others, stage.compared),
                   "count the position up by one at every draft step");
    }
    return fault("engine-step-token",
                 fmt::format("{} of {} later draft steps do not consume the draft before them", tokens, stage.compared),
                 "feed each draft back as a target id: through d2t where the vocabularies differ");
  }

  Expected<Forward> forward(const Reading& reading, bool keep_draft_keys = false, const std::vector<size_t>& order = {}) {
    AERIE_ASSIGN(const Drafter drafter, scorer_.drafter(reading));
    Forward out;
    ForwardRunner runner(drafter, scorer_.ops(), keep_draft_keys);
    std::vector<uint16_t> ordered;
    for (const EngineCase& c : cases_) {
      std::span<const uint16_t> features = c.request.features;
      if (!order.empty()) {
        const size_t width = static_cast<size_t>(reading.spec.target_hidden), all = static_cast<size_t>(c.request.width);
        ordered.resize(features.size());
        for (size_t r = 0; r < c.request.rows.size(); ++r) {
          for (size_t i = 0; i < order.size(); ++i)
            std::copy_n(features.begin() + static_cast<std::ptrdiff_t>(r * all + order[i] * width), width,
                        ordered.begin() + static_cast<std::ptrdiff_t>(r * all + i * width));
        }
        features = ordered;
      }
      runner.run(c.request, features, out);
    }
    return out;
  }

  Expected<bool> check_forward() {
    if (std::any_of(cases_.begin(), cases_.end(), [](const EngineCase& c) {
          return c.request.cached > 0 && !c.request.rows.empty() && c.request.rows.front().position > 0;
        })) {
      // Without the cached rows the keys of the prefix are not known, and drafts may differ for that alone.
      out_.stages.push_back({"first drafts", 0, 0, "not compared: keys of a cached prefix are not in the trace"});
      return true;
    }
    AERIE_ASSIGN(const Forward own, forward(reading_));
    out_.stages.push_back(own.first);
    if (own.first.compared == 0) return true;
    const bool first_agrees = own.first.share() >= kAgree;
    if (first_agrees) out_.stages.push_back(own.later);
    if (first_agrees && own.later.share() >= kAgree) return true;
    return explain(own, first_agrees);
  }

  /// Which other forward gives the engine's drafts?
  Expected<bool> explain(const Forward& own, bool first_agrees) {
    const auto share = [&](const Forward& f) {
      const double compared = static_cast<double>(f.first.compared + f.later.compared);
      return compared == 0 ? 0.0 : static_cast<double>(f.first.agreed + f.later.agreed) / compared;
    };
    struct Explanation {
      std::string code, name, fix;
      double share = 0;
    };
    std::vector<Explanation> found;
    const auto consider = [&](const std::string& code, const std::string& name, const std::string& fix, const Expected<Forward>& f) {
      if (f.ok() && f->first.share() >= kExplains && (f->later.compared == 0 || f->later.share() >= kExplains))
        found.push_back({code, name, fix, share(*f)});
    };
    consider("engine-draft-keys-kept", "the keys of its own drafts kept in the draft cache",
             "drop the keys that were written while drafting at each verify, and write them again from the target's states",
             forward(reading_, true));
    for (const Hypothesis& h : other_hypotheses(reading_, scorer_.checkpoint(), facts_)) {
      if (h.axis == "feature_shift" || h.axis == "token_shift" || h.axis == "positions")
        continue;  // these are inputs, and were compared before
      std::string code = "engine-" + h.axis;
      std::replace(code.begin(), code.end(), '_', '-');
      consider(code, h.name,
               "make the engine run the forward that the files declare, or write the files so that it does (aerie inspect --served-by)",
               forward(h.reading));
    }
    std::vector<size_t> order;
    for (size_t i = 0; i < reading_.spec.taps.size(); ++i) order.push_back(i);
    while (order.size() <= 4 && std::next_permutation(order.begin(), order.end())) {
      consider("engine-feature-order", fmt::format("its taps taken in the order {}", fmt::join(order, ",")),
               "put the taps together in the order of the files", forward(reading_, false, order));
    }
    const EngineStage& failed = first_agrees ? own.later : own.first;
    const std::string text =
        fmt::format("on the rows that the engine feeds it, the drafter as declared drafts otherwise than the engine ({} {} agree)",
                    of(failed), failed.name);
    if (found.empty()) {
      const bool opening = own.opening.compared > 0 && own.opening.share() >= kAgree && own.first.share() < kAgree;
      say(Severity::kWarning, opening ? "engine-draft-cache" : "engine-drafts-unexplained",
          opening ? text + fmt::format("; the first cycles of the requests agree ({}), so that the weights are right and what the draft "
                                       "cache holds later is not",
                                       of(own.opening))
                  : text + "; none of the other readings explains it",
          opening
              ? "look at how the draft cache is kept after a verify: keys of rejected drafts, slots that were overwritten, positions"
              : "compare the weights that the engine holds with those of the files: not loaded, overwritten by the target's, quantised");
      return false;
    }
    std::stable_sort(found.begin(), found.end(), [](const Explanation& a, const Explanation& b) { return a.share > b.share; });
    const bool certain = found.size() == 1 || found[1].share < found[0].share || found[1].code == found[0].code;
    std::string also;
    if (!certain) also = fmt::format("; {} explains it as well", found[1].name);
    say(certain ? Severity::kError : Severity::kWarning, found[0].code,
        fmt::format("{}; with {} it drafts what the engine drafts ({:.1f} %){}", text, found[0].name, 100 * found[0].share, also),
        found[0].fix);
    return false;
  }

  /// Greedy verification: the drafts that equal the answer, and nothing else, are accepted.
  bool check_counts() {
    EngineStage stage{"accepted counts", 0, 0, "cycles that accepted the drafts which the answer confirms"};
    int64_t fewer = 0, more = 0, gaps = 0;
    for (const EngineCase& c : cases_) {
      for (size_t i = 0; i < c.request.cycles.size(); ++i) {
        const EngineCycle& cycle = c.request.cycles[i];
        const auto left = static_cast<int32_t>(c.request.tokens.size()) - cycle.newest - 1;  // tokens after the newest
        int32_t confirmed = 0;
        while (confirmed < static_cast<int32_t>(cycle.drafts.size()) && confirmed < left &&
               c.request.tokens[static_cast<size_t>(cycle.newest + 1 + confirmed)] == cycle.drafts[static_cast<size_t>(confirmed)]) {
          ++confirmed;
        }
        // The last token of the answer counts as the target's own, also where it was drafted.
        const bool ends = i + 1 == c.request.cycles.size();
        const bool right = cycle.accepted == confirmed || (ends && confirmed == left && cycle.accepted == confirmed - 1);
        ++stage.compared;
        stage.agreed += right ? 1 : 0;
        fewer += !right && cycle.accepted < confirmed ? 1 : 0;
        more += !right && cycle.accepted > confirmed ? 1 : 0;
        gaps += !ends && c.request.cycles[i + 1].newest != cycle.newest + cycle.accepted + 1 ? 1 : 0;
      }
    }
    out_.stages.push_back(stage);
    if (more > 0) {
      return fault(
          "engine-accepts-too-much",
          fmt::format("{} of {} cycles accepted drafts that are not in the answer: the output is not the target's, or acceptance is faked",
                      more, stage.compared),
          "compare the output with drafting off; look for SGLANG_SIMULATE_ACC_LEN and its like");
    }
    if (fewer > 0 && stage.share() < kAgree) {
      return fault(
          "engine-accepts-too-little", fmt::format("{} of {} cycles accepted fewer drafts than the answer confirms", fewer, stage.compared),
          "verify greedily at temperature 0: a sampled verification, a relaxed threshold or a mask of the tree throws right drafts away");
    }
    if (gaps > 0) {
      return fault("engine-cycles-with-gaps",
                   fmt::format("after {} of {} cycles the next one does not begin at the token that follows", gaps, stage.compared), "");
    }
    return true;
  }

  const std::vector<EngineCase>& cases_;
  ReadingScorer& scorer_;
  const Reading& reading_;
  const HypothesisFacts& facts_;
  EngineComparison out_;
  int shift_ = 0, ahead_ = 1;
};

size_t common_beginning(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

Expected<std::vector<EngineCase>> read_engine_cases(const EngineTraceReader& reader, const TraceSource* source, size_t most) {
  std::vector<EngineCase> out;
  for (size_t i = 0; i < std::min(reader.size(), most); ++i) {
    EngineCase& next = out.emplace_back();
    AERIE_ASSIGN(next.request, reader.read(i));
  }
  size_t left = out.size();
  for (size_t i = 0; source != nullptr && left > 0 && i < std::min<size_t>(source->size(), kMostRequests); ++i) {
    auto conversation = source->read(i);
    if (!conversation.ok()) continue;  // named when the sample is taken
    for (EngineCase& c : out) {
      const size_t common = common_beginning(c.request.tokens, conversation->trace.tokens);
      if (c.stored || common <= static_cast<size_t>(c.request.prompt)) continue;
      c.stored = *conversation;
      c.common = common;
      --left;
    }
  }
  return out;
}

Expected<EngineComparison> compare_engine(const std::vector<EngineCase>& cases, ReadingScorer& scorer, const Reading& reading,
                                          const HypothesisFacts& facts) {
  return Comparer(cases, scorer, reading, facts).run();
}

ReportSection describe(const EngineComparison& comparison, const EngineTraceManifest& manifest) {
  ReportSection out{"engine_trace", fmt::format("{} against the replay, place by place", manifest.engine), {}, nlohmann::json::object()};
  nlohmann::json stages = nlohmann::json::array();
  for (const EngineStage& stage : comparison.stages) {
    out.lines.push_back(stage.compared == 0
                            ? fmt::format("{:<24} -                {}", stage.name, stage.what)
                            : fmt::format("{:<24} {:5.1f} % of {:<6} {}", stage.name, 100 * stage.share(), stage.compared, stage.what));
    stages.push_back({{"name", stage.name}, {"compared", stage.compared}, {"agreed", stage.agreed}});
  }
  if (comparison.cycles > 0) {
    out.lines.push_back(fmt::format("acceptance length {:.3f} over {} cycles, as the engine counted; stored states of {} requests",
                                    comparison.acceptance_length, comparison.cycles, comparison.with_states));
  }
  out.data = {{"engine", manifest.engine},
              {"drafter", manifest.drafter},
              {"stages", stages},
              {"acceptance_length", comparison.acceptance_length},
              {"cycles", comparison.cycles},
              {"requests_with_states", comparison.with_states}};
  if (comparison.length.size() > 1)
    out.charts.push_back(length_histogram("requests by acceptance length", {{"served", comparison.length}}));
  return out;
}

}  // namespace aerie
