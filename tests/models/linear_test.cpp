// The largest output of a product, found without keeping the product.
#include "models/linear.h"

#include <cmath>
#include <limits>
#include <random>

#include "models_fixture.h"

namespace aerie {
namespace {

TEST(Argmax, IsThatOfTheProductWithTiesAndNan) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  constexpr int kCols = 64;
  for (const int rows : {1, 15, 16, 200, 1000}) {
    kernels::PackedMatrix w(kernels::TileFormat::kF32, rows, kCols);
    std::vector<float> row(kCols);
    for (int r = 0; r < rows; ++r) {
      // Every fifth row is that of five before: its outputs tie, wherever the work is cut.
      if (r % 5 != 0 || r == 0) {
        for (float& v : row) v = normal(random);
      } else {
        kernels::unpack_row(w, r - 5, row.data());
      }
      kernels::pack_row_f32(w, r, row.data());
    }
    for (const int n : {1, 3, 17, 70}) {
      Activations x(n, kCols);
      for (int r = 0; r < n; ++r) {
        for (int c = 0; c < kCols; ++c) x.row(r)[c] = n > 1 && r == 1 ? std::numeric_limits<float>::quiet_NaN() : normal(random);
      }
      for (const kernels::Isa isa : kernels::available_isas()) {
        const kernels::Kernels& k = **kernels::kernels_for(isa);
        std::vector<float> y(static_cast<size_t>(n) * static_cast<size_t>(rows));
        const LinearTask task[] = {{&w, y.data(), static_cast<size_t>(rows)}};
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          run_linear(pool, k, task, x.input(), n);
          std::vector<int32_t> best(static_cast<size_t>(n), 77);
          run_argmax(pool, k, w, x.input(), n, best.data());
          for (int r = 0; r < n; ++r) {
            EXPECT_EQ(best[static_cast<size_t>(r)], k.argmax(y.data() + static_cast<size_t>(r) * static_cast<size_t>(rows), rows))
                << k.name << " rows " << rows << " n " << n << " threads " << threads << " row " << r;
          }
          if (n > 1) {
            EXPECT_EQ(best[1], -1);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace aerie
