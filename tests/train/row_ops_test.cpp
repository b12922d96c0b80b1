// The fused row operations: every instruction set against the same operations in double, and those against formulas.
#include "train/row_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "formats/tensor.h"

namespace aerie::train {
namespace {

using Doubles = std::vector<double>;

const RowOps<double, double>& exact() { return row_ops<double, double>(); }

/// Lengths around the vectors' widths, and those of a draft vocabulary.
constexpr int64_t kLengths[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 577, 8192};

/// Values that bf16 holds exactly, so that all types start from the same.
Doubles draw(int64_t n, uint32_t seed, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Doubles values;
  for (int64_t i = 0; i < n; ++i) values.push_back(bf16_to_f32(f32_to_bf16(static_cast<float>(scale) * normal(random))));
  return values;
}

template <class T>
T narrow(double x) {
  if constexpr (std::is_same_v<T, uint16_t>) {
    return f32_to_bf16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}
template <class T>
double widened(T x) {
  if constexpr (std::is_same_v<T, uint16_t>) {
    return bf16_to_f32(x);
  } else {
    return x;
  }
}
template <class T>
std::vector<T> as(const Doubles& values) {
  std::vector<T> out;
  for (const double x : values) out.push_back(narrow<T>(x));
  return out;
}

template <class T>
void expect_near(const std::vector<T>& found, const Doubles& expected, double relative, double absolute, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(widened(found[i]), expected[i], absolute + relative * std::fabs(expected[i]))
        << what << ", value " << i << " of " << found.size();
  }
}

/// How far T's rounding may take a result.
template <class T>
constexpr double kRounding = std::is_same_v<T, uint16_t> ? 5e-3 : 2e-5;

template <class T>
void agrees_with_double(const RowOps<T, float>& ops) {
  uint32_t seed = 1;
  for (const int64_t n : kLengths) {
    const std::string what = "n " + std::to_string(n);
    const size_t count = static_cast<size_t>(n);
    const Doubles z = draw(n, ++seed, 3), t = draw(n, ++seed, 3), dy = draw(n, ++seed, 1);
    for (const double sharpness : {1.0, 2.5}) {
      const TeacherRow<double> teacher = exact().teacher(t.data(), n, sharpness);
      const TeacherRow<float> found = ops.teacher(as<T>(t).data(), n, static_cast<float>(sharpness));
      EXPECT_NEAR(found.log_sum, teacher.log_sum, 1e-5 * (1 + std::fabs(teacher.log_sum))) << what;
      EXPECT_NEAR(found.entropy, teacher.entropy, 1e-5 * (1 + teacher.entropy)) << what;
      for (const Loss loss : {Loss::kKl, Loss::kLkHybrid}) {
        const int64_t label = n / 2;
        Doubles gradient(count), scratch(2 * count);
        const RowLoss expected =
            exact().loss(z.data(), t.data(), n, {teacher, sharpness, label, 0.5, loss}, scratch.data(), gradient.data());
        std::vector<T> logits = as<T>(z);
        std::vector<float> narrow_scratch(2 * count);
        const RowLossInput<float> in = {found, static_cast<float>(sharpness), label, 0.5f, loss};
        const RowLoss without = ops.loss(logits.data(), as<T>(t).data(), n, in, narrow_scratch.data(), nullptr);
        const RowLoss row = ops.loss(logits.data(), as<T>(t).data(), n, in, narrow_scratch.data(), logits.data());  // in place
        EXPECT_NEAR(row.loss, expected.loss, 3e-5 * (1 + expected.loss)) << what;
        EXPECT_EQ(row.loss, without.loss);
        EXPECT_EQ(row.correct, expected.correct) << what;
        expect_near(logits, gradient, kRounding<T>, 1e-6, "gradient, " + what);
      }
    }
    Doubles y(count), d_gate(count), d_up(count);
    exact().gated(z.data(), t.data(), n, y.data());
    exact().gated_backward(z.data(), t.data(), dy.data(), n, d_gate.data(), d_up.data());
    std::vector<T> found(count), found_gate(count), found_up(count);
    ops.gated(as<T>(z).data(), as<T>(t).data(), n, found.data());
    ops.gated_backward(as<T>(z).data(), as<T>(t).data(), as<T>(dy).data(), n, found_gate.data(), found_up.data());
    expect_near(found, y, kRounding<T>, 1e-6, "gated, " + what);
    expect_near(found_gate, d_gate, kRounding<T>, 1e-5, "gate, " + what);
    expect_near(found_up, d_up, kRounding<T>, 1e-6, "up, " + what);

    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, n}, {n / 3, n / 3 + (n + 1) / 2}, {n / 2, n / 2}}) {
      Doubles scores = z, own = {0.5, -1.25};
      std::vector<T> found_scores = as<T>(z);
      std::vector<float> found_own = as<float>(own);
      Doubles scratch(count);
      std::vector<float> narrow_scratch(count);
      exact().softmax(scores.data(), begin, end, n, own.data(), 2, scratch.data());
      ops.softmax(found_scores.data(), begin, end, n, found_own.data(), 2, narrow_scratch.data());
      expect_near(found_scores, scores, kRounding<T>, 1e-7, "softmax, " + what);
      expect_near(found_own, own, 1e-5, 1e-7, "softmax of own, " + what);
      double sum = own[0] + own[1];
      for (const double share : scores) sum += share;
      EXPECT_NEAR(sum, 1, 1e-12);
      Doubles ds = dy, d_own = {0.25, -2}, weights;
      for (const T share : found_scores) weights.push_back(widened(share));
      std::vector<T> found_ds = as<T>(dy);
      std::vector<float> found_d_own = as<float>(d_own);
      exact().softmax_backward(weights.data(), ds.data(), n, own.data(), d_own.data(), 2);
      ops.softmax_backward(found_scores.data(), found_ds.data(), n, found_own.data(), found_d_own.data(), 2);
      expect_near(found_ds, ds, kRounding<T>, 1e-5, "scores' gradients, " + what);
      expect_near(found_d_own, d_own, 1e-4, 1e-5, "own scores' gradients, " + what);
    }

    const Doubles w = draw(n, ++seed, 1);
    Doubles dx(count), dw = t;
    std::vector<float> found_y(count), found_dx(count), found_dw = as<float>(t);
    const double inverse = exact().rms_norm(z.data(), w.data(), n, 1e-5, y.data());
    const float found_inverse = ops.rms_norm(as<float>(z).data(), as<float>(w).data(), n, 1e-5f, found_y.data());
    exact().rms_norm_backward(z.data(), w.data(), dy.data(), n, inverse, dx.data(), dw.data());
    ops.rms_norm_backward(as<float>(z).data(), as<float>(w).data(), as<float>(dy).data(), n, found_inverse, found_dx.data(),
                          found_dw.data());
    expect_near(found_y, y, 1e-5, 1e-6, "norm, " + what);
    expect_near(found_dx, dx, 1e-4, 1e-5, "norm's dx, " + what);
    expect_near(found_dw, dw, 1e-4, 1e-5, "norm's dw, " + what);
    EXPECT_NEAR(ops.dot(as<float>(z).data(), as<float>(t).data(), n), exact().dot(z.data(), t.data(), n), 1e-4 * static_cast<double>(n));
    Doubles sum = w;
    std::vector<float> found_sum = as<float>(w), found_product = found_sum;
    exact().add_scaled(0.3, z.data(), n, sum.data());
    ops.add_scaled(0.3f, as<float>(z).data(), n, found_sum.data());
    ops.add_product(0.3f, as<T>(z).data(), n, found_product.data());
    expect_near(found_sum, sum, 1e-5, 1e-5, "sum, " + what);
    expect_near(found_product, sum, 1e-5, 1e-5, "product, " + what);

    Doubles moved = t, ahead(count);
    std::vector<float> found_moved = as<float>(t);
    std::vector<T> found_ahead(count);
    const double squares = exact().momentum(0.95, 0.5, dy.data(), n, moved.data(), ahead.data());
    const float found_squares = ops.momentum(0.95f, 0.5f, as<float>(dy).data(), n, found_moved.data(), found_ahead.data());
    EXPECT_NEAR(found_squares, squares, 1e-4 * (1 + squares)) << what;
    expect_near(found_moved, moved, 1e-5, 1e-6, "momentum, " + what);
    expect_near(found_ahead, ahead, kRounding<T>, 1e-6, "the look ahead, " + what);

    AdamStep<double> adam = {0.9, 0.95, 1e-8, 0.5, 0.999, 0.01, 3.0};
    Doubles value = z, first = t, second(count, 0.5);
    std::vector<float> found_value = as<float>(z), found_first = as<float>(t), found_second(count, 0.5f);
    exact().adam(adam, dy.data(), n, value.data(), first.data(), second.data());
    ops.adam({0.9f, 0.95f, 1e-8f, 0.5f, 0.999f, 0.01f, 3.0f}, as<float>(dy).data(), n, found_value.data(), found_first.data(),
             found_second.data());
    expect_near(found_value, value, 1e-5, 1e-5, "Adam's value, " + what);
    expect_near(found_first, first, 1e-5, 1e-6, "Adam's first moment, " + what);
    expect_near(found_second, second, 1e-5, 1e-6, "Adam's second moment, " + what);
  }
}

TEST(RowOps, AgreeWithDoubleOnEveryInstructionSet) {
  for (const RowOpTables* tables : available_row_ops()) {
    SCOPED_TRACE(static_cast<int>(tables->isa));
    agrees_with_double<uint16_t>(tables->bf16);
    agrees_with_double<float>(tables->f32);
  }
}

TEST(RowOps, TurnPairsWhereverTheyStand) {
  const Doubles cos = {0.6, 0.8, -1}, sin = {0.8, -0.6, 0};
  const Doubles halves = {1, 2, 3, 4, 5, 6}, neighbours = {1, 4, 2, 5, 3, 6};
  Doubles turned(6), turned_neighbours(6);
  exact().rotate(halves.data(), halves.data() + 3, cos.data(), sin.data(), 3, 1, turned.data(), turned.data() + 3);
  exact().rotate(neighbours.data(), neighbours.data() + 1, cos.data(), sin.data(), 3, 2, turned_neighbours.data(),
                 turned_neighbours.data() + 1);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(turned[i], halves[i] * cos[i] - halves[i + 3] * sin[i], 1e-15);
    EXPECT_NEAR(turned[i + 3], halves[i + 3] * cos[i] + halves[i] * sin[i], 1e-15);
    EXPECT_EQ(turned[i], turned_neighbours[2 * i]);
    EXPECT_EQ(turned[i + 3], turned_neighbours[2 * i + 1]);
  }
}

Doubles softmax_of(const Doubles& logits, double sharpness) {
  Doubles p;
  double sum = 0;
  for (const double x : logits) sum += p.emplace_back(std::exp(sharpness * x));
  for (double& x : p) x /= sum;
  return p;
}

TEST(RowOps, LossesFollowTheirFormulas) {
  constexpr int64_t kN = 11;
  constexpr double kSharpness = 1.5, kWeight = 0.7, kStep = 1e-6;
  const Doubles z = draw(kN, 5, 1), t = draw(kN, 6, 1), p = softmax_of(t, kSharpness);
  const auto kl = [&](const Doubles& logits) {
    const Doubles q = softmax_of(logits, 1);
    double sum = 0;
    for (size_t i = 0; i < kN; ++i) sum += p[i] * std::log(p[i] / q[i]);
    return sum;
  };
  const auto tv = [&](const Doubles& logits) {
    const Doubles q = softmax_of(logits, 1);
    double common = 0;
    for (size_t i = 0; i < kN; ++i) common += std::min(p[i], q[i]);
    return 1 - common;
  };
  const double share = std::exp(-3 * (1 - tv(z)));  // no part of the gradient
  const TeacherRow<double> teacher = exact().teacher(t.data(), kN, kSharpness);
  for (const Loss loss : {Loss::kKl, Loss::kLkHybrid}) {
    const auto value = [&](const Doubles& logits) {
      return loss == Loss::kKl ? kl(logits) : share * kl(logits) + (1 - share) * tv(logits);
    };
    Doubles gradient(kN), scratch(2 * kN);
    const RowLoss row = exact().loss(z.data(), t.data(), kN, {teacher, kSharpness, 0, kWeight, loss}, scratch.data(), gradient.data());
    EXPECT_NEAR(row.loss, value(z), 1e-12);
    for (size_t i = 0; i < kN; ++i) {
      Doubles above = z, below = z;
      above[i] += kStep;
      below[i] -= kStep;
      EXPECT_NEAR(gradient[i], kWeight * (value(above) - value(below)) / (2 * kStep), 1e-8) << "logit " << i;
    }
  }
}

}  // namespace
}  // namespace aerie::train
