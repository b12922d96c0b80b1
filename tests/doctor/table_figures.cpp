// Faults that an engine's command line, log or costs show; and the rows that nothing shows.
#include "doctor/acceptance_signs.h"
#include "doctor/economics.h"
#include "doctor/engine_flags.h"
#include "doctor/engine_metrics.h"
#include "doctor/report.h"
#include "gtest/gtest.h"
#include "table.h"

namespace aerie {
namespace {

std::function<std::vector<Finding>()> flags(const std::string& engine, const std::string& line) {
  return [=] {
    const auto setup = read_engine_flags(parse_engine(engine).value(), line);
    EXPECT_TRUE(setup.ok()) << setup.status().message();
    return setup.ok() ? setup->findings : std::vector<Finding>{};
  };
}

std::string log(double length, int k, int lines, int running = 1) {
  std::string out;
  for (int i = 0; i < lines; ++i) {
    const double l = length == 1.0 ? 1.0 : std::min(length + 0.02 * ((i * 7) % 5 - 2), 1.0 + k);
    out +=
        fmt::format("Decode batch, #running-req: {}, accept len: {:.2f}, accept rate: {:.2f}, cuda graph: True\n", running, l, (l - 1) / k);
  }
  return out;
}

MetricsReading reading(const std::string& text) { return read_engine_metrics(parse_engine("sglang:0.5.23").value(), text).value(); }

std::function<std::vector<Finding>()> shape(const std::string& text) {
  return [=] { return judge_acceptance(reading(text)); };
}

std::function<std::vector<Finding>()> compared(const std::string& a, const std::string& with_a, const std::string& b,
                                               const std::string& with_b) {
  return [=] {
    std::vector<LabelledReading> out;
    for (const auto& [condition, text] : {std::pair{a, with_a}, std::pair{b, with_b}}) {
      const auto parsed = parse_condition(condition).value();
      out.push_back({parsed.first, parsed.second, reading(text)});
    }
    return compare_conditions(out);
  };
}

}  // namespace

// clang-format off
std::vector<TableRow> figure_faults() {
  const std::string sglang = "python -m sglang.launch_server --model-path T --speculative-draft-model-path D ";
  return {
      {{11}, "a target whose verify costs three times a decode", {"slower-than-plain"},
       [] {
         const CostCurve costs = CostCurve::create({{1, 10.0}, {4, 30.0}}, 1.0).value();
         Acceptance a;
         a.k = 3;
         a.length = 2.4;
         std::vector<Finding> findings;
         describe(costs, a, findings);
         return findings;
       }},
      {{24}, "EAGLE where EAGLE3 was meant", {"eagle-not-eagle3"},
       flags("sglang:0.5.23", "python -m sglang.launch_server --model-path T --speculative-draft-model-path D-eagle3 --speculative-algorithm EAGLE "
                              "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4")},
      {{25}, "no path of a drafter: the target is loaded as one", {"no-drafter"},
       flags("sglang:0.5.23", "python -m sglang.launch_server --model-path T --speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 "
                              "--speculative-num-draft-tokens 4")},
      {{26}, "topk 1 overrides 24 draft tokens", {"drafts-fewer-than-asked"},
       flags("sglang:0.5.23", sglang + "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 24")},
      {{27}, "one step, sixteen draft tokens", {"drafts-fewer-than-asked"},
       flags("sglang:0.5.23", sglang + "--speculative-algorithm EAGLE3 --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16")},
      {{45}, "acceptance that falls with the context", {"decays-with-position"}, compared("context:2048", log(2.3, 3, 20), "context:8192", log(1.6, 3, 20))},
      {{53}, "random tokens: the target repeats itself and all is accepted", {"nearly-all-accepted"}, shape(log(3.98, 3, 12))},
      {{56}, "acceptance that decays with the uptime", {"decays-with-time"}, shape(log(2.8, 3, 12) + log(1.9, 3, 12))},
      {{58}, "the same prompt twice: the second time from the cache", {"worse-when-warm"}, compared("cold", log(2.4, 3, 20), "warm", log(1.2, 3, 20))},
      {{58}, "acceptance that falls with the batch", {"falls-with-batch"}, compared("batch:1", log(2.6, 3, 20), "batch:16", log(1.8, 3, 20))},
      {{62}, "NaN logits: nothing is ever accepted", {"nothing-accepted"}, shape(log(1.0, 3, 12))},
  };
}
// clang-format on

// clang-format off
std::vector<NotShown> not_shown() {
  return {
      {{50}, "the template that an engine renders is in none of the files; aerie tokenize shows both renderings side by side"},
      {{57}, "prefix hits are no figure of speculation, and the logs that are read do not state them with it"},
      {{63}, "images: no trace that is read holds what the vision tower put in place of tokens"},
  };
}
// clang-format on

}  // namespace aerie
