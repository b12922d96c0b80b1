#include "formats/engine_trace.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <filesystem>
#include <fstream>

#include "formats/safetensors.h"
#include "support/temp_folder.h"

namespace aerie {
namespace {

EngineRequest small_request() {
  EngineRequest out;
  out.tokens = {5, 6, 7, 8, 9, 10, 11};
  out.prompt = 3;
  out.cycles = {{3, 1, {9, 4}}, {5, 0, {3}}};
  out.rows = {{6, 0, 0}, {7, 1, 0}, {8, 2, 0}, {9, 3, 1}, {10, 4, 1}};
  out.width = 4;
  for (uint16_t i = 0; i < 20; ++i) out.features.push_back(static_cast<uint16_t>(0x3f80 + i));
  out.steps = {{0, 0, 8, 2}, {0, 1, 9, 3}, {1, 0, 10, 4}};
  out.top = 2;
  out.top_tokens = {9, 1, 4, 2, 3, 0};
  out.top_logits = {2.5f, 1, 3, -1, 0.5f, 0.25f};
  return out;
}

void expect_same(const EngineRequest& a, const EngineRequest& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.prompt, b.prompt);
  EXPECT_EQ(a.cached, b.cached);
  ASSERT_EQ(a.cycles.size(), b.cycles.size());
  for (size_t i = 0; i < a.cycles.size(); ++i) {
    EXPECT_EQ(a.cycles[i].newest, b.cycles[i].newest);
    EXPECT_EQ(a.cycles[i].accepted, b.cycles[i].accepted);
    EXPECT_EQ(a.cycles[i].drafts, b.cycles[i].drafts);
  }
  ASSERT_EQ(a.rows.size(), b.rows.size());
  for (size_t i = 0; i < a.rows.size(); ++i) {
    EXPECT_EQ(a.rows[i].token, b.rows[i].token);
    EXPECT_EQ(a.rows[i].position, b.rows[i].position);
    EXPECT_EQ(a.rows[i].cycle, b.rows[i].cycle);
  }
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(a.steps[i].cycle, b.steps[i].cycle);
    EXPECT_EQ(a.steps[i].step, b.steps[i].step);
    EXPECT_EQ(a.steps[i].token, b.steps[i].token);
    EXPECT_EQ(a.steps[i].position, b.steps[i].position);
  }
  EXPECT_EQ(a.width, b.width);
  EXPECT_EQ(a.features, b.features);
  EXPECT_EQ(a.top, b.top);
  EXPECT_EQ(a.top_tokens, b.top_tokens);
  EXPECT_EQ(a.top_logits, b.top_logits);
}

/// A folder with one request.
std::string written(const TempFolder& folder) {
  const std::string path = folder / "trace";
  auto writer = EngineTraceWriter::open(path, {"engine 1", "drafter"});
  EXPECT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_TRUE(writer->write(small_request()).ok());
  return path;
}

std::string refusal(const std::string& path) {
  const auto reader = EngineTraceReader::open(path);
  if (!reader.ok()) return reader.status().message();
  const auto request = reader->read(0);
  EXPECT_FALSE(request.ok());
  return request.ok() ? "" : request.status().message();
}

TEST(EngineTrace, IsReadAsItWasWritten) {
  const TempFolder folder;
  const std::string path = written(folder);
  auto again = EngineTraceWriter::open(path, {"engine 1", "drafter"});
  ASSERT_TRUE(again.ok()) << again.status().message();
  EngineRequest empty;
  empty.tokens = {1};
  empty.prompt = 1;
  const Status written_empty = again->write(empty);
  ASSERT_TRUE(written_empty.ok()) << written_empty.message();
  const auto reader = EngineTraceReader::open(path);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->manifest().engine, "engine 1");
  ASSERT_EQ(reader->size(), 2u);
  const auto first = reader->read(0), second = reader->read(1);
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_TRUE(second.ok()) << second.status().message();
  expect_same(*first, small_request());
  expect_same(*second, empty);
}

/// Written by tools/trace/test_recorder.py, from stand-ins with the signatures of the engines' modules.
TEST(EngineTrace, WhatTheRecordersWriteIsRead) {
  for (const char* engine : {"sglang", "vllm"}) {
    const auto reader = EngineTraceReader::open(data_path(std::string("recorded/") + engine));
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_EQ(reader->manifest().engine, std::string(engine) + " 0");
    ASSERT_EQ(reader->size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const auto request = reader->read(i);
      ASSERT_TRUE(request.ok()) << request.status().message();
      EXPECT_EQ(request->tokens.size(), 24u);
      EXPECT_EQ(request->width, 6);
      EXPECT_EQ(request->top, 2);
      for (size_t r = 0; r < request->rows.size(); ++r) {
        EXPECT_EQ(request->rows[r].position, static_cast<int>(r));
        EXPECT_EQ(request->rows[r].token, request->tokens[r + 1]);
        EXPECT_EQ(bf16_to_f32(request->features[r * 6 + 4]), static_cast<float>(r) + 0.5f);
      }
      size_t step = 0;
      for (const EngineCycle& cycle : request->cycles) {
        for (size_t s = 0; s < cycle.drafts.size(); ++s, ++step) {
          EXPECT_EQ(request->steps[step].step, static_cast<int>(s));
          EXPECT_EQ(request->top_tokens[2 * step], cycle.drafts[s]);
        }
      }
      EXPECT_EQ(step, request->steps.size());
    }
  }
}

TEST(EngineTrace, AFolderHoldsOneEngine) {
  const TempFolder folder;
  const std::string path = written(folder);
  const auto other = EngineTraceWriter::open(path, {"engine 2", "drafter"});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("use another folder"), std::string::npos);
}

TEST(EngineTrace, WhatContradictsItselfIsNotWritten) {
  const TempFolder folder;
  auto writer = EngineTraceWriter::open(folder / "trace", {"engine 1", ""});
  ASSERT_TRUE(writer.ok());
  const auto refused = [&](auto&& damage) {
    EngineRequest request = small_request();
    damage(request);
    EXPECT_EQ(writer->write(request).code(), StatusCode::kInvalidArgument);
  };
  refused([](EngineRequest& r) { r.prompt = 8; });
  refused([](EngineRequest& r) { r.cached = 4; });
  refused([](EngineRequest& r) { r.features.pop_back(); });
  refused([](EngineRequest& r) { r.top_logits.pop_back(); });
  refused([](EngineRequest& r) { r.cycles[0].accepted = 3; });
  refused([](EngineRequest& r) { r.cycles[1].newest = 3; });
  refused([](EngineRequest& r) { r.cycles[1].newest = 7; });
}

TEST(EngineTrace, DamageIsNamedWithItsFile) {
  const auto lines = [](const std::string& text) {
    const TempFolder folder;
    const std::string path = written(folder);
    std::ofstream(path + "/request_0.jsonl", std::ios::binary) << text;
    return refusal(path);
  };
  const std::string head = R"({"token_ids": [5, 6, 7, 8, 9, 10, 11], "prompt_tokens": 3, "cached_tokens": 0})"
                           "\n";
  EXPECT_NE(lines("").find("cut off"), std::string::npos);
  EXPECT_NE(lines(head + R"({"newest": 3, "dra)").find("cut off"), std::string::npos);
  EXPECT_NE(lines(R"({"token_ids": [5, -6]})"
                  "\n")
                .find("token_ids[1] is no token id"),
            std::string::npos);
  EXPECT_NE(lines(R"({"prompt_tokens": 1})"
                  "\n")
                .find("line 1: key token_ids should hold a list"),
            std::string::npos);
  EXPECT_NE(lines(head + R"({"newest": 3, "drafts": [9], "accepted": 2})"
                         "\n")
                .find("accepted 2 of 1 drafts"),
            std::string::npos);
  EXPECT_NE(lines(head + R"({"newest": 3, "drafts": [9], "accepted": 1})"
                         "\n")
                .find("rows.cycle[3] is 1, expected 0 to 0"),
            std::string::npos);
  EXPECT_NE(lines(head + "[1]\n").find("line 2: expected a JSON object"), std::string::npos);

  const auto manifest = [](const std::string& text) {
    const TempFolder folder;
    const std::string path = written(folder);
    std::ofstream(path + "/engine.json", std::ios::binary) << text;
    return refusal(path);
  };
  EXPECT_NE(manifest("{}").find("whose format is aerie-engine-trace"), std::string::npos);
  EXPECT_NE(manifest(R"({"format": "aerie-engine-trace", "format_version": 2, "engine": "e"})").find("format_version is 2"),
            std::string::npos);
  EXPECT_NE(manifest(R"({"format": "aerie-engine-trace", "format_version": 1})").find("key engine"), std::string::npos);

  const TempFolder folder;
  const std::string path = written(folder);
  std::filesystem::remove(path + "/request_0.safetensors");
  EXPECT_NE(refusal(path).find("request_0.safetensors"), std::string::npos);
}

TEST(EngineTrace, SizesThatContradictEachOtherAreRefused) {
  const auto with = [](const std::string& name, DType type, const std::vector<uint64_t>& shape) {
    const TempFolder folder;
    const std::string path = written(folder), file = path + "/request_0.safetensors";
    std::vector<std::vector<uint8_t>> kept;
    std::vector<TensorView> views;
    {
      const auto whole = SafetensorsFile::open(file);
      for (const TensorView& view : whole->tensors()) {
        kept.emplace_back(view.data.begin(), view.data.end());
        views.push_back(view);
      }
    }
    for (size_t i = 0; i < views.size(); ++i) {
      if (views[i].name == name) {
        views[i].type = type;
        views[i].shape = shape;
        kept[i].assign(views[i].element_count() * static_cast<uint64_t>(block_bytes(type)), 0);
      }
      views[i].data = kept[i];
    }
    EXPECT_TRUE(write_safetensors(file, views).ok());
    return refusal(path);
  };
  EXPECT_NE(with("rows.token", DType::kI64, {4}).find("rows.token has the shape [4], expected 5 values"), std::string::npos);
  EXPECT_NE(with("rows.feature", DType::kBF16, {20}).find("expected two dimensions"), std::string::npos);
  EXPECT_NE(with("rows.token", DType::kF32, {5}).find("rows.token"), std::string::npos);
  EXPECT_NE(with("steps.top_logits", DType::kF32, {2, 3}).find("steps.top_logits has the shape [2, 3]"), std::string::npos);
}

RC_GTEST_PROP(EngineTrace, NoDamageBreaksTheReader, ()) {
  const TempFolder folder;
  const std::string path = written(folder);
  const std::string file = path + (*rc::gen::arbitrary<bool>() ? "/request_0.jsonl" : "/request_0.safetensors");
  std::string bytes = read_bytes(file);
  const size_t at = *rc::gen::inRange<size_t>(0, bytes.size());
  if (*rc::gen::arbitrary<bool>()) {
    bytes.resize(at);
  } else {
    bytes[at] = static_cast<char>(*rc::gen::inRange(0, 256));
  }
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  const auto reader = EngineTraceReader::open(path);
  RC_ASSERT(reader.ok());
  const auto request = reader->read(0);
  if (request.ok()) RC_ASSERT(request->check().ok());
}

}  // namespace
}  // namespace aerie
