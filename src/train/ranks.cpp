#include "train/ranks.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <span>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace aerie::train {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr seconds kJoin{300};                             // for all ranks to come
constexpr microseconds kShortest{100}, kLongest{10'000};  // between questions for a value
constexpr milliseconds kGlance{500};                      // between looks at whether the others are alive
constexpr seconds kBeat{1};                               // between signs of life
constexpr size_t kPiece = size_t{4} << 20;                // the store refuses values of more than 8 MiB
constexpr const char* kGivenUp = "given_up";

Expected<int> number_of(const char* name, int least, int most) {
  const char* text = std::getenv(name);
  if (text == nullptr)
    return invalid_argument("WORLD_SIZE is set, but {} is not: start every rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT", name);
  int out = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, out);
  if (error != std::errc() || stop != end || out < least || out > most)
    return invalid_argument("{} is {}, expected {} to {}", name, text, least, most);
  return out;
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

struct Ranks::Impl {
  int rank = 0, size = 1;
  seconds timeout{0};
  c10::intrusive_ptr<c10d::Store> store;
  int64_t round = 0;
  std::vector<std::string> sent, sent_before;  // keys of this round and of the one before
  Status failed;

  // Signs of life have a connection of their own: the store's is blocked while a rank waits.
  c10::intrusive_ptr<c10d::Store> pulse_store;
  std::thread pulse;
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::vector<std::pair<int64_t, Clock::time_point>> beats;  // of each rank: the last count, and when it changed

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    if (pulse.joinable()) pulse.join();
  }

  std::string beat_key(int r) const { return fmt::format("beat/{}", r); }

  void start_pulse() {
    pulse_store = store->clone();
    beats.assign(static_cast<size_t>(size), {-1, Clock::now()});
    pulse = std::thread([this] {
      std::unique_lock lock(mutex);
      while (!stopping) {
        lock.unlock();
        try {
          pulse_store->add(beat_key(rank), 1);
        } catch (const std::exception&) {
          return;  // the rank's own calls say what is wrong
        }
        lock.lock();
        wake.wait_for(lock, kBeat, [this] { return stopping; });
      }
    });
  }

  Status fail(const std::string& why) {
    if (failed.ok()) failed = io_error("{}", why);
    return failed;
  }

  /// Whether a rank gave up, or has shown no sign of life for too long.
  Status look_around() {
    if (store->check({kGivenUp})) {
      const std::vector<uint8_t> why = store->get(kGivenUp);
      return fail(std::string(why.begin(), why.end()));
    }
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      auto& [count, since] = beats[static_cast<size_t>(r)];
      const int64_t now = store->add(beat_key(r), 0);
      if (now != count) {
        count = now;
        since = Clock::now();
      } else if (Clock::now() - since > timeout) {
        return fail(fmt::format("rank {} of {} has shown no sign of life for {} seconds", r, size, timeout.count()));
      }
    }
    return {};
  }

  /// Asks again and again: the store's own wait complains on stderr whenever its time is up, and cannot look around meanwhile.
  Expected<std::vector<uint8_t>> wait_for(const std::string& key) {
    Clock::time_point glanced = Clock::now();
    for (microseconds pause = kShortest; !store->check({key}); pause = std::min(2 * pause, kLongest)) {
      std::this_thread::sleep_for(pause);
      if (Clock::now() - glanced < kGlance) continue;
      AERIE_TRY(look_around());
      glanced = Clock::now();
    }
    return store->get(key);
  }

  /// Runs `work`, whose store calls throw where rank 0 is gone.
  template <class Work>
  Status guarded(const Work& work) {
    if (!failed.ok()) return failed;
    try {
      return work();
    } catch (const std::exception& error) {
      return fail(fmt::format("the store of rank 0 cannot be reached: {}", std::string(error.what()).substr(0, 200)));
    }
  }

  void send(const std::string& key, std::span<const uint8_t> bytes) {
    for (size_t begin = 0, piece = 0; begin == 0 || begin < bytes.size(); begin += kPiece, ++piece) {
      const auto part = bytes.subspan(begin, std::min(kPiece, bytes.size() - begin));
      sent.push_back(fmt::format("{}/{}", key, piece));
      store->set(sent.back(), std::vector<uint8_t>(part.begin(), part.end()));
    }
  }

  Status receive(const std::string& key, std::span<uint8_t> bytes) {
    for (size_t begin = 0, piece = 0; begin == 0 || begin < bytes.size(); begin += kPiece, ++piece) {
      const auto part = bytes.subspan(begin, std::min(kPiece, bytes.size() - begin));
      AERIE_ASSIGN(const std::vector<uint8_t> got, wait_for(fmt::format("{}/{}", key, piece)));
      if (got.size() != part.size())
        return fail(
            fmt::format("{} holds {} bytes, expected {}: the ranks run different programs or options", key, got.size(), part.size()));
      std::copy(got.begin(), got.end(), part.begin());
    }
    return {};
  }

  /// Whoever has everything of this round knows that all have left the one before.
  void forget_last_round() {
    for (const std::string& key : sent_before) store->deleteKey(key);
    sent_before.clear();
  }
  void end_round() {
    sent_before.insert(sent_before.end(), sent.begin(), sent.end());
    sent.clear();
    ++round;
  }

  template <class T>
  Status sum(std::span<T> values) {
    return guarded([&]() -> Status {
      const auto slice = [&](int r) {
        const auto at = [&](int q) { return values.size() * static_cast<size_t>(q) / static_cast<size_t>(size); };
        return values.subspan(at(r), at(r + 1) - at(r));
      };
      const auto bytes = [](std::span<T> part) { return std::span(reinterpret_cast<uint8_t*>(part.data()), part.size_bytes()); };
      const std::string key = fmt::format("round/{}", round);
      for (int r = 0; r < size; ++r) {
        if (r != rank) send(fmt::format("{}/part/{}/{}", key, rank, r), bytes(slice(r)));
      }
      const std::span<T> own = slice(rank);
      std::vector<T> total(own.size(), T{0}), other(own.size());
      for (int r = 0; r < size; ++r) {
        if (r != rank) AERIE_TRY(receive(fmt::format("{}/part/{}/{}", key, r, rank), bytes(other)));
        const std::span<const T> part = r == rank ? std::span<const T>(own) : std::span<const T>(other);
        for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
      }
      std::copy(total.begin(), total.end(), own.begin());
      forget_last_round();
      send(fmt::format("{}/sum/{}", key, rank), bytes(own));
      for (int r = 0; r < size; ++r) {
        if (r != rank) AERIE_TRY(receive(fmt::format("{}/sum/{}", key, r), bytes(slice(r))));
      }
      end_round();
      return {};
    });
  }
};

Ranks::Ranks() : impl_(std::make_unique<Impl>()) {}
Ranks::Ranks(Ranks&&) noexcept = default;
Ranks& Ranks::operator=(Ranks&&) noexcept = default;
Ranks::~Ranks() = default;

int Ranks::rank() const { return impl_->rank; }
int Ranks::size() const { return impl_->size; }

bool Ranks::lost() const { return !impl_->failed.ok(); }

Expected<Ranks> Ranks::from_environment(seconds timeout) {
  Ranks out;
  out.impl_->timeout = timeout;
  if (std::getenv("WORLD_SIZE") == nullptr) return out;
  constexpr int kMostRanks = 1024, kMostPort = 65535;
  AERIE_ASSIGN(out.impl_->size, number_of("WORLD_SIZE", 1, kMostRanks));
  if (out.impl_->size == 1) return out;
  AERIE_ASSIGN(out.impl_->rank, number_of("RANK", 0, out.impl_->size - 1));
  AERIE_ASSIGN(const int port, number_of("MASTER_PORT", 1, kMostPort));
  const char* address = std::getenv("MASTER_ADDR");
  if (address == nullptr) return invalid_argument("WORLD_SIZE is set, but MASTER_ADDR is not: it is the machine of rank 0");
  // torchrun's agent may serve a store there already.
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = out.first() && (agent == nullptr || std::string_view(agent) != "True");
  options.timeout = kJoin;
  try {
    // A store of torchrun's agent outlives the processes: what an earlier attempt left there must not be taken for this one's.
    const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
    out.impl_->store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("aerie/{}", attempt == nullptr ? "0" : attempt),
                                                              c10::make_intrusive<c10d::TCPStore>(address, options));
    out.impl_->start_pulse();
    // All have come when all have a heart.
    for (int r = 0; r < out.size(); ++r) out.impl_->store->wait({out.impl_->beat_key(r)}, kJoin);
    for (auto& [count, since] : out.impl_->beats) since = Clock::now();
  } catch (const std::exception& error) {
    return io_error("rank {} of {}: the others did not meet at {}:{} within {} s: {}", out.rank(), out.size(), address, port, kJoin.count(),
                    std::string(error.what()).substr(0, 200));
  }
  return out;
}

Status Ranks::sum(std::vector<double>& values) { return alone() ? Status() : impl_->sum(std::span<double>(values)); }

Status Ranks::sum(const std::vector<at::Tensor>& tensors) {
  if (alone()) return {};
  std::vector<float> all;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor flat = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
    all.insert(all.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
  AERIE_TRY(impl_->sum(std::span<float>(all)));
  float* next = all.data();
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(at::from_blob(next, tensor.sizes(), at::kFloat));
    next += tensor.numel();
  }
  return {};
}

Status Ranks::share(std::string& text) {
  if (alone()) return {};
  return impl_->guarded([&]() -> Status {
    const std::string key = fmt::format("round/{}/text", impl_->round);
    if (first()) {
      impl_->sent.push_back(key);
      impl_->store->set(key, bytes_of(text));
    } else {
      AERIE_ASSIGN(const std::vector<uint8_t> got, impl_->wait_for(key));
      text.assign(got.begin(), got.end());
    }
    // Nobody answers, so that rank 0 does not know who has read it: its key goes with those of the next sum.
    ++impl_->round;
    return {};
  });
}

void Ranks::give_up(const std::string& why) {
  if (alone() || !impl_->failed.ok()) return;
  try {
    impl_->store->set(kGivenUp, bytes_of(fmt::format("rank {} of {} gave up: {}", rank(), size(), why)));
    // Rank 0 serves the store: the others must have looked before it is gone.
    if (first()) std::this_thread::sleep_for(3 * kGlance);
  } catch (const std::exception&) {
    // Nobody is left to be told.
  }
}

Status Ranks::finish() {
  std::vector<double> all = {1};
  AERIE_TRY(sum(all));
  if (alone()) return {};
  if (!first())
    return impl_->guarded([&]() -> Status {
      impl_->store->set(fmt::format("left/{}", rank()), bytes_of("1"));
      return {};
    });
  return impl_->guarded([&]() -> Status {
    for (int r = 1; r < size(); ++r) {
      const auto left = impl_->wait_for(fmt::format("left/{}", r));
      if (!left.ok()) return left.status();
    }
    return {};
  });
}

}  // namespace aerie::train
