#include "eagle3/target_fit.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "models/registry.h"

namespace aerie {
namespace {

constexpr uint64_t kSampledRows = 512;
constexpr double kSameRow = 0.98;  // cosine of a row and what 4 bits leave of it: 0.99

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double out = 0;
  for (size_t i = 0; i < a.size(); ++i) out += static_cast<double>(a[i]) * b[i];
  return out;
}

/// Of evenly spaced rows.
struct TableShape {
  double norm_spread = 0;  // standard deviation of the rows' squared lengths over their mean
  double kurtosis = 0;     // of the values: 3 for a normal distribution
  double direction = 0;    // squared length of the mean row over the mean squared length: 1/n for n independent rows
  uint64_t rows = 0;
};

Expected<TableShape> shape_of(const TensorView& table) {
  TableShape out;
  out.rows = std::min(kSampledRows, table.rows());
  std::vector<float> row;
  std::vector<double> mean(table.cols(), 0.0);
  double sum = 0, squares = 0, fourth = 0;
  for (uint64_t i = 0; i < out.rows; ++i) {
    AERIE_TRY(read_row(table, i * table.rows() / out.rows, row));
    const double length = dot(row, row);
    sum += length;
    squares += length * length;
    for (size_t c = 0; c < row.size(); ++c) {
      mean[c] += row[c];
      fourth += std::pow(static_cast<double>(row[c]), 4.0);
    }
  }
  const auto n = static_cast<double>(out.rows), width = static_cast<double>(table.cols());
  if (sum <= 0.0) return out;
  const double average = sum / n, variance = sum / (n * width);
  out.norm_spread = std::sqrt(std::max(squares / n - average * average, 0.0)) / average;
  out.kurtosis = fourth / (n * width) / (variance * variance);
  for (const double value : mean) out.direction += value / n * (value / n);
  out.direction /= average;
  return out;
}

double spread_by_chance(const TableShape& shape, uint64_t width) {
  return std::sqrt(std::max(shape.kurtosis - 1.0, 0.0) / static_cast<double>(width));
}

bool looks_random(const TableShape& shape, uint64_t width) {
  // For independent values the rows' squared lengths spread by sqrt((kurtosis - 1) / width), and the mean row vanishes. Tables
  // that were trained have rows of many lengths and a direction in common.
  return shape.kurtosis > 1.5 && shape.kurtosis < 3.5 && shape.norm_spread < 1.25 * spread_by_chance(shape, width) &&
         shape.direction < 2.0 / static_cast<double>(shape.rows);
}

/// Of evenly spaced rows of two tables of one shape.
struct Cosines {
  double mean = 0, least = 1;
};

Expected<Cosines> cosines_of(const TensorView& a, const TensorView& b) {
  const uint64_t rows = std::min(kSampledRows, a.rows());
  std::vector<float> x, y;
  Cosines out;
  for (uint64_t i = 0; i < rows; ++i) {
    const uint64_t row = i * a.rows() / rows;
    AERIE_TRY(read_row(a, row, x));
    AERIE_TRY(read_row(b, row, y));
    const double lengths = std::sqrt(dot(x, x) * dot(y, y));
    const double cosine = lengths > 0.0 ? dot(x, y) / lengths : x == y ? 1.0 : 0.0;
    out.mean += cosine / static_cast<double>(rows);
    out.least = std::min(out.least, cosine);
  }
  return out;
}

/// The shape of the drafter's own table, where that can be told: with fewer rows or values chance decides.
Expected<std::optional<TableShape>> own_table(const DraftCheckpoint& checkpoint) {
  const auto own = checkpoint.tensors.find("embed_tokens");
  if (own == checkpoint.tensors.end() || own->second.rows() < 128 || own->second.cols() < 32) return std::optional<TableShape>();
  AERIE_ASSIGN(const TableShape shape, shape_of(own->second));
  return std::optional(shape);
}

void compare_theta(const DraftSpec& spec, const TargetFacts& target, std::vector<Finding>& out) {
  if (target.rope_theta == 0.0f || target.rope_theta == spec.rope_theta) return;
  const auto p = spec.provenance.find("rope_theta");
  if (p != spec.provenance.end() && p->second.source == Source::kDefaulted) return;  // reading it said so already
  // What an exporter writes that did not find the trained value, or that of another schema.
  const bool class_default = spec.rope_theta == 10000.0f;
  out.push_back(
      {class_default ? Severity::kWarning : Severity::kNote, "rope-theta-not-the-targets",
       fmt::format("rope_theta is {}{}, the target's {}: a drafter may well be trained so, but an exporter that lost the value writes "
                   "this too",
                   spec.rope_theta, class_default ? ", the default of config classes" : "", target.rope_theta),
       "look the value up where the drafter was trained"});
}

}  // namespace

Expected<TargetFacts> target_facts(const GgufFile& file) {
  AERIE_ASSIGN(const std::string architecture, file.get_string("general.architecture"));
  AERIE_ASSIGN(const TargetConfig config, read_target_config(file, architecture));
  TargetFacts out{config.hidden, config.vocab, config.blocks, config.context, config.rope_theta};
  const auto embedding = file.find("token_embd.weight");
  if (embedding.ok()) out.embedding = *embedding;
  return out;
}

Expected<std::vector<Finding>> target_findings(const DraftCheckpoint& checkpoint, const TargetFacts& target) {
  const DraftSpec& spec = checkpoint.spec;
  std::vector<Finding> out;
  if (const Status fits = check_fits_target(spec, target.hidden, target.vocab, target.blocks); !fits.ok()) {
    out.push_back({Severity::kError, "another-target", fits.message(), ""});
    return out;
  }
  if (target.context > spec.max_positions) {
    out.push_back(
        {Severity::kWarning, "context-longer-than-trained",
         fmt::format("the drafter was made for {} positions, the target's context has {}: SGLang refuses this unless told otherwise, "
                     "and acceptance may fall beyond them",
                     spec.max_positions, target.context),
         "measure acceptance at the lengths that are served, or train with longer conversations"});
  }
  compare_theta(spec, target, out);
  const auto own = checkpoint.tensors.find("embed_tokens");
  if (own == checkpoint.tensors.end() || target.embedding == nullptr || target.embedding->shape != own->second.shape) return out;
  AERIE_ASSIGN(const Cosines cosines, cosines_of(own->second, *target.embedding));
  if (cosines.mean >= 0.5) return out;
  AERIE_ASSIGN(const auto shape, own_table(checkpoint));
  const bool random = shape && looks_random(*shape, own->second.cols());
  out.push_back(
      {random ? Severity::kError : Severity::kWarning, "embedding-not-the-targets",
       fmt::format("the drafter's embedding is not the target's (mean cosine of their rows {:.2f}){}: engines that put the target's "
                   "in its place, as SGLang does, serve another forward than those that keep it",
                   cosines.mean, random ? " and was never trained" : ""),
       random ? "remove embed_tokens.weight, so that the target's is used"
              : "serve it where the drafter's own embedding is kept, or find out why the export holds another table"});
  return out;
}

Expected<bool> drop_targets_embedding(DraftCheckpoint& checkpoint, const TargetFacts& target) {
  const auto own = checkpoint.tensors.find("embed_tokens");
  if (own == checkpoint.tensors.end() || target.embedding == nullptr || target.embedding->shape != own->second.shape) return false;
  AERIE_ASSIGN(const Cosines cosines, cosines_of(own->second, *target.embedding));
  if (cosines.least < kSameRow) return false;
  checkpoint.tensors.erase(own);
  checkpoint.spec.own_embedding = false;
  return true;
}

Expected<std::vector<Finding>> embedding_findings(const DraftCheckpoint& checkpoint) {
  std::vector<Finding> out;
  AERIE_ASSIGN(const auto shape, own_table(checkpoint));
  if (!shape) return out;
  const uint64_t width = checkpoint.tensors.at("embed_tokens").cols();
  if (looks_random(*shape, width)) {
    out.push_back(
        {Severity::kWarning, "embedding-random",
         fmt::format("embed_tokens.weight looks never trained: its values are independent of each other (the squared lengths of {} "
                     "rows spread by {:.1f} %, by chance alone by {:.1f} %)",
                     shape->rows, 100.0 * shape->norm_spread, 100.0 * spread_by_chance(*shape, width)),
         "if the drafter was trained with the target's embedding, remove it, so that the target's is used"});
  }
  return out;
}

}  // namespace aerie
