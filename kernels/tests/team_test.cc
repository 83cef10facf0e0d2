// The team of threads and the scratch memory, with threads of our own in place of onnxruntime's pool.
#include "team.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "fake_onnxruntime.h"
#include "scratch.h"
#include "test.h"

using namespace attendant;

TEST(every_chunk_of_every_phase_runs_once) {
  const Fake fake;
  Random random(1);
  for (int trial = 0; trial < 200; trial++) {
    const int threads = random.between(1, 4), phases = random.between(1, 20);
    std::vector<std::vector<int>> counts(static_cast<size_t>(phases));
    for (auto& chunks : counts) chunks.resize(size_t(random.between(0, 40)));
    run_team(fake.api(), fake.context(), threads, [&](Team& team) {
      for (auto& chunks : counts)
        team.parallel(
            int(chunks.size()), [&](int i) { chunks[size_t(i)]++; }, trial % 2 == 0);
    });
    for (const auto& chunks : counts)
      for (int count : chunks) CHECK(count == 1);
  }
}

TEST(a_phase_sees_what_the_phase_before_wrote) {
  const Fake fake;
  for (int trial = 0; trial < 100; trial++) {
    std::vector<int> values(64, 1);
    run_team(fake.api(), fake.context(), 3, [&](Team& team) {
      for (int phase = 0; phase < 10; phase++) {
        std::vector<int> next(64);
        team.parallel(
            64, [&](int i) { next[size_t(i)] = values[size_t(i)] + values[size_t((i + 1) % 64)]; }, true);
        team.parallel(
            64, [&](int i) { values[size_t(i)] = next[size_t(i)]; }, true);
      }
    });
    for (int value : values) CHECK(value == 1024);
  }
}

TEST(an_error_in_a_chunk_reaches_the_caller_once) {
  const Fake fake;
  for (int trial = 0; trial < 50; trial++) {
    int caught = 0;
    std::atomic<int> ran{0};
    try {
      run_team(fake.api(), fake.context(), 1 + trial % 4, [&](Team& team) {
        team.parallel(
            20,
            [&](int i) {
              ran++;
              if (i % 7 == 3) throw std::runtime_error("as planned");
            },
            true);
        CHECK(false);  // not reached
      });
    } catch (const std::runtime_error&) {
      caught++;
    }
    CHECK(caught == 1 && ran >= 4);
  }
}

TEST(helpers_that_come_late_or_never_do_not_hold_up_the_leader) {
  Fake fake;
  fake.late = true;
  int sum = 0;
  run_team(fake.api(), fake.context(), 4, [&](Team& team) {
    std::vector<int> values(100);
    team.parallel(
        100, [&](int i) { values[size_t(i)] = i; }, true);
    for (int value : values) sum += value;
  });
  CHECK(sum == 4950);
}

TEST(scratch_memory_is_apart_in_nested_frames_and_aligned) {
  for (int trial = 0; trial < 5; trial++) {
    Frame outer;
    char* a = outer.take<char>(100);
    std::fill(a, a + 100, 'a');
    for (int i = 0; i < 10; i++) {
      Frame inner;
      float* b = inner.take<float>(size_t(10000 + 50000 * i));
      std::fill(b, b + 10000 + 50000 * i, 1.0f);
      CHECK(reinterpret_cast<uintptr_t>(b) % 64 == 0);
      char* c = inner.take<char>(1);
      *c = 'c';
    }
    for (int i = 0; i < 100; i++) CHECK(a[i] == 'a');
  }
  bool refused = false;
  try {
    Frame frame;
    frame.take<double>(SIZE_MAX / 4);
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  CHECK(refused);
}
