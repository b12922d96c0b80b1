#include "train/batch.h"

#include <algorithm>

#include "base/random.h"
#include "eagle3/replay.h"

namespace aerie::train {
namespace {

/// Makes runs of the rows that a document has added to step `s`: those from the place `begin` on.
void add_runs(StepPlan& plan, int64_t document, int64_t begin, int64_t s) {
  const int64_t end = static_cast<int64_t>(plan.positions.size());
  for (; begin < end; begin += kMaxRun) {
    plan.runs.push_back({document, plan.positions[static_cast<size_t>(begin)] - s, begin, std::min(kMaxRun, end - begin)});
  }
}

/// A supervised row on its way through the steps.
struct LiveRow {
  int64_t row = 0, available = 0;
  int64_t place = 0;    // in the list of the current step
  int64_t teacher = 0;  // of its step 0
};

/// Keeps `anchors` of the rows, drawn at random, in their order.
void keep_anchors(std::vector<LiveRow>& rows, int anchors, uint64_t stream) {
  if (anchors <= 0 || rows.size() <= static_cast<size_t>(anchors)) return;
  std::vector<uint32_t> kept = shuffled(static_cast<uint32_t>(rows.size()), stream);
  kept.resize(static_cast<size_t>(anchors));
  std::ranges::sort(kept);
  for (size_t n = 0; n < kept.size(); ++n) rows[n] = rows[kept[n]];
  rows.resize(kept.size());
}

void add_noise(std::span<uint16_t> values, double noise, uint64_t stream) {
  for (uint16_t& value : values) {
    const double move = noise * (2 * next_uniform(stream) - 1);
    value = f32_to_bf16(static_cast<float>(static_cast<double>(bf16_to_f32(value)) + move));
  }
}

}  // namespace

PackedBatch pack_documents(std::span<const Trace> documents, int steps, std::span<const int32_t> to_draft, const Draws& draws,
                           std::span<const uint32_t> numbers) {
  PackedBatch batch;
  batch.steps.resize(static_cast<size_t>(steps));
  int64_t teachers = 0;
  size_t states = 0;
  for (const Trace& document : documents) states += document.states.size();
  batch.features.reserve(states);
  for (size_t d = 0; d < documents.size(); ++d) {
    const Trace& document = documents[d];
    const uint64_t number = numbers.empty() ? d : numbers[d], epoch = static_cast<uint64_t>(draws.epoch);
    const std::vector<ReplayStart> starts = find_starts(document.mask, steps);
    if (starts.empty()) continue;
    const size_t feature_width = static_cast<size_t>(document.slots - 1) * static_cast<size_t>(document.hidden);
    const int64_t id = static_cast<int64_t>(batch.document_rows.size());
    const int64_t rows = starts.back().row + 1;  // nothing attends to later ones
    const int64_t base = batch.rows();
    batch.document_rows.push_back(rows);
    batch.tokens += static_cast<int64_t>(document.tokens.size());

    StepPlan& first = batch.steps[0];
    for (int64_t i = 0; i < rows; ++i) {
      first.tokens.push_back(document.tokens[static_cast<size_t>(i) + 1]);
      first.positions.push_back(i);
      const uint16_t* feature = document.state(static_cast<size_t>(i), 0).data();  // the taps stand side by side
      batch.features.insert(batch.features.end(), feature, feature + feature_width);
      if (draws.noise == 0) continue;
      add_noise(std::span(batch.features).last(feature_width), draws.noise,
                random_stream({draws.seed, epoch, number, static_cast<uint64_t>(i)}));
    }
    add_runs(first, id, base, 0);

    std::vector<LiveRow> live;
    for (const ReplayStart& start : starts) {
      const auto state = document.state(static_cast<size_t>(start.row) + 1, document.slots - 1);
      batch.teacher_states.insert(batch.teacher_states.end(), state.begin(), state.end());
      live.push_back({start.row, start.available, base + start.row, teachers++});
    }
    for (int s = 0; s < steps; ++s) {
      StepPlan& plan = batch.steps[static_cast<size_t>(s)];
      std::erase_if(live, [s](const LiveRow& row) { return row.available <= s; });
      if (s == 1) keep_anchors(live, draws.anchors, random_stream({draws.seed, epoch, number}));
      const int64_t begin = static_cast<int64_t>(plan.tokens.size());
      for (LiveRow& row : live) {
        if (s > 0) {
          plan.parents.push_back(row.place);
          row.place = static_cast<int64_t>(plan.tokens.size());
          plan.tokens.push_back(document.tokens[static_cast<size_t>(row.row + 1 + s)]);
          plan.positions.push_back(row.row + s);
        }
        ++plan.supervised;
        const int32_t label = to_draft[static_cast<size_t>(document.tokens[static_cast<size_t>(row.row + 2 + s)])];
        if (label < 0) continue;
        plan.loss_rows.push_back(row.place);
        plan.teachers.push_back(row.teacher + s);  // the rows of one answer follow each other, and so do their teachers
        plan.labels.push_back(label);
      }
      if (s > 0) add_runs(plan, id, begin, s);
    }
  }
  return batch;
}

void pad_rows(PackedBatch& batch) {
  const size_t width = batch.rows() == 0 ? 0 : batch.features.size() / static_cast<size_t>(batch.rows());
  for (StepPlan& plan : batch.steps) {
    const size_t rows = static_cast<size_t>(rounded_up(static_cast<int64_t>(plan.tokens.size()), kRowMultiple));
    if (!plan.parents.empty()) plan.parents.resize(rows, 0);
    plan.tokens.resize(rows, 0);
    plan.positions.resize(rows, 0);
  }
  batch.features.resize(static_cast<size_t>(batch.rows()) * width, 0);
}

std::vector<std::vector<size_t>> pack_rows(std::span<const int64_t> lengths, int64_t row_length) {
  std::vector<std::vector<size_t>> rows;
  std::vector<int64_t> filled;
  for (size_t i = 0; i < lengths.size(); ++i) {
    size_t row = 0;
    while (row < rows.size() && filled[row] + lengths[i] > row_length) ++row;
    if (row == rows.size()) {
      rows.emplace_back();
      filled.push_back(0);
    }
    rows[row].push_back(i);
    filled[row] += lengths[i];
  }
  return rows;
}

namespace {

/// `read` gives the conversation at a place.
template <class Read>
Expected<std::vector<PackedBatch>> lay_out(std::span<const int64_t> lengths, std::span<const uint32_t> numbers, const Read& read,
                                           int64_t row_length, int steps, std::span<const int32_t> to_draft, const Draws& draws,
                                           RowShare share) {
  std::vector<PackedBatch> batches;
  const auto rows = pack_rows(lengths, row_length);
  for (size_t r = static_cast<size_t>(share.first); r < rows.size(); r += static_cast<size_t>(share.of)) {
    std::vector<Trace> documents;
    std::vector<uint32_t> of_row;
    for (const size_t place : rows[r]) {
      AERIE_ASSIGN(Trace document, read(place));
      documents.push_back(std::move(document));
      of_row.push_back(numbers[place]);
    }
    batches.push_back(pack_documents(documents, steps, to_draft, draws, of_row));
    pad_rows(batches.back());
  }
  return batches;
}

}  // namespace

Expected<std::vector<PackedBatch>> load_step(const Dataset& data, std::span<const uint32_t> chosen, int64_t row_length, int steps,
                                             std::span<const int32_t> to_draft, const Draws& draws, RowShare share) {
  const std::vector<Conversation>& all = data.training();
  std::vector<int64_t> lengths;
  for (const uint32_t index : chosen) lengths.push_back(static_cast<int64_t>(all[index].tokens.size()));
  return lay_out(
      lengths, chosen, [&](size_t place) { return data.read(all[chosen[place]]); }, row_length, steps, to_draft, draws, share);
}

std::vector<PackedBatch> lay_out_step(std::vector<Trace> documents, std::span<const uint32_t> numbers, int64_t row_length, int steps,
                                      std::span<const int32_t> to_draft, const Draws& draws) {
  std::vector<int64_t> lengths;
  for (const Trace& document : documents) lengths.push_back(static_cast<int64_t>(document.length()));
  const auto read = [&](size_t place) { return Expected<Trace>(std::move(documents[place])); };
  return *lay_out(lengths, numbers, read, row_length, steps, to_draft, draws, {});
}

}  // namespace aerie::train
