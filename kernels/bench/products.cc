// How fast the int8 products of each path are at the sizes of decoding, beside what the machine can do at best:
// products that stay in the nearest cache (GOP/s, in int8 and f32), and one row times weights from memory (GB/s, by
// whichever of the two reads faster). One line of JSON for each figure.
//
//   products [PATH] [THREADS] [limits]     best of several turns, one core; the limits also with all THREADS
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "path.h"

using namespace attendant;

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A product of made-up weights that can be run again and again.
struct Job {
  int k, n, rows;
  std::vector<int8_t> packed;
  std::vector<float> scale, bias, row_scale, y;
  std::vector<int32_t> sums;
  std::vector<uint8_t> q;

  Job(int k, int n, int rows)
      : k(k),
        n(n),
        rows(rows),
        packed(size_t(k) * size_t(n), 1),
        scale(size_t(n), 1),
        bias(size_t(n)),
        row_scale(size_t(rows), 1),
        y(size_t(rows) * size_t(n)),
        sums(size_t(n), k),
        q(size_t(rows) * size_t(k), 130) {}

  void run(const Path& path) {
    const Int8Weights w{k, n, packed.data(), scale.data(), sums.data(), bias.data()};
    path.int8_product({&w, q.data(), row_scale.data(), rows, 0, n / 32, y.data(), size_t(n), nullptr, 0});
  }
  double operations() const { return 2.0 * rows * k * n; }
};

struct F32Job {
  int k, n, rows;
  std::vector<float> w, x, y;

  F32Job(int k, int n, int rows)
      : k(k),
        n(n),
        rows(rows),
        w(size_t(k) * size_t(n), 1),
        x(size_t(rows) * size_t(k), 1),
        y(size_t(rows) * size_t(n)) {}

  void run(const Path& path) {
    path.f32_product({w.data(), 32, size_t(32) * size_t(k), nullptr, x.data(), size_t(k), k, rows, 0, n, y.data(),
                      size_t(n), nullptr, 0, nullptr});
  }
  double operations() const { return 2.0 * rows * k * n; }
};

// Seconds of one run, the best of some turns of at least `least` seconds.
double best(const std::function<void()>& run, double least = 0.004, int turns = 12) {
  run();
  double fastest = 1e9;
  for (int turn = 0; turn < turns; turn++) {
    int runs = 0;
    const double start = seconds();
    do run(), runs++;
    while (seconds() - start < least);
    fastest = std::min(fastest, (seconds() - start) / runs);
  }
  return fastest;
}

// `amount` per second of all threads together: turns that they begin at the same time, of which the best counts.
double together(int threads, double amount, const std::function<std::function<void()>()>& make) {
  constexpr int TURNS = 10;
  const std::vector<double> none(static_cast<size_t>(threads));
  std::vector<std::vector<double>> rates(TURNS, none);
  std::atomic<int> arrived{0};
  std::vector<std::thread> all;
  for (int i = 0; i < threads; i++)
    all.emplace_back([&, i] {
      const auto run = make();
      run();
      for (int turn = 0; turn < TURNS; turn++) {
        arrived++;
        while (arrived < threads * (turn + 1)) std::this_thread::yield();
        rates[size_t(turn)][size_t(i)] = amount / best(run, 0.03, 1);
      }
    });
  for (std::thread& thread : all) thread.join();
  double most = 0;
  for (const auto& turn : rates) most = std::max(most, std::accumulate(turn.begin(), turn.end(), 0.0));
  return most;
}

template <class AnyJob>
double operations_a_second(const Path& path, int threads, int k, int n, int rows) {
  return together(threads, AnyJob(k, n, rows).operations(), [=, &path] {
    auto job = std::make_shared<AnyJob>(k, n, rows);
    return [job, &path] { job->run(path); };
  });
}

void print_limits(const Path& path, int threads) {
  constexpr int WIDE = 64 << 10;  // times 1024: 64 MB of int8 for each thread
  const double peak = operations_a_second<Job>(path, threads, 512, 32, 12);
  const double f32_peak = operations_a_second<F32Job>(path, threads, 128, 32, 12);
  // Of one row: two operations for each weight, of 1 or 4 bytes.
  const double bandwidth = std::max(operations_a_second<Job>(path, threads, 1024, WIDE, 1) / 2,
                                    operations_a_second<F32Job>(path, threads, 1024, WIDE / 4, 1) * 2);
  std::printf(
      "{\"path\": \"%s\", \"threads\": %d, \"peak_gops\": %.1f, \"f32_peak_gops\": %.1f, \"bandwidth_gbs\": %.1f}\n",
      path.name, threads, peak / 1e9, f32_peak / 1e9, bandwidth / 1e9);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const Path& path = choose_path(count > 1 ? arguments[1] : "");
  const int most = count > 2 ? std::atoi(arguments[2]) : int(std::thread::hardware_concurrency());
  for (int threads = 1; threads <= most; threads += most > 1 ? most - 1 : 1) print_limits(path, threads);
  if (count > 3) return 0;
  const int sizes[][2] = {{256, 256}, {512, 512}, {512, 1536}, {512, 2048}, {2048, 512}, {512, 32000}};
  for (const auto& size : sizes)
    for (int rows : {1, 4, 12, 32, 64}) {
      Job job(size[0], size[1], rows);
      const double time = best([&] { job.run(path); });
      std::printf("{\"path\": \"%s\", \"k\": %d, \"n\": %d, \"rows\": %d, \"us\": %.2f, \"gops\": %.1f}\n", path.name,
                  size[0], size[1], rows, time * 1e6, job.operations() / time / 1e9);
      std::fflush(stdout);
    }
  return 0;
}
