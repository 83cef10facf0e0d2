// The search of one job: its live and finished hypotheses, and when it is done.
#pragma once
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "search.h"

namespace attendant {

struct Hypothesis {
  std::vector<int64_t> ids;
  std::vector<double> logprobs;
  double weight = 0;  // the sum of log-probabilities

  void extend(int64_t token, double logprob) {
    ids.push_back(token);
    logprobs.push_back(logprob);
    weight += logprob;
  }
};

// Writes hypotheses into two buffers, whose room the caller has checked.
struct Writer {
  int64_t* integers;
  double* numbers;

  void put(std::initializer_list<int64_t> values) { integers = std::copy(values.begin(), values.end(), integers); }
  void put(const Hypothesis& each, int reason, double rank) {
    put({int64_t(each.ids.size()), reason});
    integers = std::copy(each.ids.begin(), each.ids.end(), integers);
    *numbers++ = each.weight;
    *numbers++ = rank;
    numbers = std::copy(each.logprobs.begin(), each.logprobs.end(), numbers);
  }
};

struct Finished {
  double rank;  // smallest first
  int reason;   // 0 stop, 1 length
  Hypothesis hypothesis;
};

struct Candidate {
  double key;  // smallest first
  int parent;
  int64_t token;
  double logprob;
};

struct Job {
  std::vector<int> rows;     // of each live hypothesis, before the moves of this step
  std::vector<int> parents;  // of each hypothesis that is live after it: an index into `rows`
  bool changed = false;      // `parents` is set
  bool ours = false;
  AttendantOptions options{};
  std::vector<Hypothesis> live;
  std::vector<Finished> finished;
  int64_t first_token = 0;  // fed before the first token of the target
  int64_t decoded = 0;

  int length() const { return int(live.front().ids.size()); }

  double divisor(int tokens) const {
    return std::pow(double(std::max(options.start_length + tokens, 1)), options.length_penalty);
  }

  double best_possible(double weight) const {
    return weight / divisor(options.length_penalty > 0 ? options.max_length : length());
  }

  void end(const Hypothesis& hypothesis, int reason) {
    Finished found{-hypothesis.weight / divisor(int(hypothesis.logprobs.size())), reason, hypothesis};
    auto after = std::upper_bound(finished.begin(), finished.end(), found.rank,
                                  [](double rank, const Finished& other) { return rank < other.rank; });
    finished.insert(after, std::move(found));
  }

  // Whether the search is done although hypotheses are live: see GenerateSearch._decided.
  bool decided() const {
    const size_t asked = size_t(options.num_hypotheses);
    if (finished.size() < asked) return false;
    const double best = live.front().weight;
    if (best_possible(best) <= -finished[asked - 1].rank) return true;
    if (finished.size() < size_t(options.beam_size) || options.early_stopping == 2) return false;
    return options.early_stopping == 1 || best / divisor(length()) <= -finished.back().rank;
  }

  // Entries that either of these writes, at most, of integers and of numbers.
  int64_t state_size() const {
    int64_t entries = 3;
    for (const auto& each : live) entries += 2 + int64_t(each.ids.size());
    for (const auto& each : finished) entries += 2 + int64_t(each.hypothesis.ids.size());
    return entries;
  }

  // The layout is that of attendant_batch_state.
  void write_state(Writer& out) const {
    out.put({int64_t(live.size()), int64_t(finished.size()), decoded});
    for (const auto& each : live) out.put(each, 0, 0);
    for (const auto& each : finished) out.put(each.hypothesis, each.reason, each.rank);
  }

  // The layout is that of attendant_batch_finish.
  void write_answers(Writer& out, int64_t slot) const {
    const size_t count = std::min(finished.size(), size_t(options.num_hypotheses));
    out.put({slot, decoded, int64_t(count)});
    for (size_t i = 0; i < count; i++) out.put(finished[i].hypothesis, finished[i].reason, finished[i].rank);
  }
};

}  // namespace attendant
