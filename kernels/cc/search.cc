#include "search.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <vector>

namespace {

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
};

}  // namespace

struct AttendantBatch {
  int64_t *tokens, *positions, *whole, *source_rows;
  int32_t pad, bos, eos;
  int count = 0;                              // rows in use
  std::vector<std::vector<int64_t>> history;  // of each row: the tokens whose keys and values it holds
  std::vector<AttendantPlane> planes;
  std::unordered_map<int32_t, Job> jobs;
  std::vector<int32_t> order;         // of the jobs, oldest first
  std::vector<Candidate> candidates;  // scratch

  void stop(Job& job) {
    job.live.clear();
    job.parents.clear();
  }

  // False: not to be decided here.
  bool rank(const Job& job, const int64_t* ids, const float* logprobs, int top_k) {
    const int beam = job.options.beam_size, per_row = beam > 1 ? beam + 1 : 1;
    const bool early = job.length() < job.options.min_length;
    const int needed = std::min(top_k, per_row + 2 + int(early));
    candidates.clear();
    for (size_t parent = 0; parent < job.live.size(); parent++) {
      const int64_t at = int64_t(job.rows[parent]) * top_k;
      int taken = 0;
      for (int i = 0; i < needed && taken < per_row; i++) {
        const int64_t token = ids[at + i];
        const double logprob = logprobs[at + i];
        if (std::isnan(logprob)) return false;
        if (token == pad || token == bos || (early && token == eos)) continue;
        candidates.push_back({-(job.live[parent].weight + logprob), int(parent), token, logprob});
        taken++;
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.key < b.key; });
    return !candidates.empty();
  }

  // Divides the candidates into finished, live and pruned: see GenerateSearch._keep.
  void keep(Job& job) {
    const size_t beam = size_t(job.options.beam_size);
    const bool at_limit = job.length() + 1 == job.options.max_length;
    const size_t looked_at = std::min(candidates.size(), (at_limit ? 1 : 2) * beam);
    job.parents.clear();
    job.changed = true;
    if (beam == 1) {  // greedy: extended in place
      const Candidate& best = candidates.front();
      Hypothesis& only = job.live.front();
      only.extend(best.token, best.logprob);
      if (best.token == eos || at_limit) {
        job.end(only, best.token == eos ? 0 : 1);
        stop(job);
      } else {
        job.parents.push_back(0);
      }
      return;
    }
    std::vector<Hypothesis> next;
    for (size_t number = 0; number < looked_at && job.parents.size() < beam; number++) {
      const Candidate& candidate = candidates[number];
      const bool ends = candidate.token == eos;
      if (ends && number >= beam) continue;
      Hypothesis extended = job.live[size_t(candidate.parent)];
      extended.extend(candidate.token, candidate.logprob);
      if (ends || at_limit) {
        job.end(extended, at_limit && !ends ? 1 : 0);
      } else {
        next.push_back(std::move(extended));
        job.parents.push_back(candidate.parent);
      }
    }
    job.live = std::move(next);
    if (job.finished.size() > beam) job.finished.resize(beam);
    if (job.parents.empty() || job.decided()) stop(job);
  }

  size_t shared_prefix(int one, int other) const {
    const auto &a = history[size_t(one)], &b = history[size_t(other)];
    return size_t(std::mismatch(a.begin(), a.begin() + int64_t(std::min(a.size(), b.size())), b.begin()).first -
                  a.begin());
  }

  // Row `to` becomes what row `from` is. Of tokens that both have only the others are copied.
  void copy_row(int from, int to, bool same_job) {
    const size_t first = same_job ? shared_prefix(from, to) : 0, last = history[size_t(from)].size();
    for (const AttendantPlane& plane : planes) {
      if (first == last) break;
      for (int64_t tensor = 0; tensor < plane.tensors; tensor++) {
        char* base = plane.base + tensor * plane.tensor_stride + int64_t(first) * plane.entry;
        for (int64_t head = 0; head < plane.heads; head++)
          std::memcpy(base + to * plane.row_stride + head * plane.head_stride,
                      base + from * plane.row_stride + head * plane.head_stride, (last - first) * size_t(plane.entry));
      }
    }
    history[size_t(to)] = history[size_t(from)];
    source_rows[to] = source_rows[from];
  }

  struct Move {
    Job* job;
    size_t index;  // of the hypothesis
  };

  void move_rows();
  void fill_inputs();
};

// A hypothesis keeps its parent's row; the second child of a parent, and rows beyond the new number of rows, move to
// free rows, if possible one that its own job has left, where the beginning is there already.
void AttendantBatch::move_rows() {
  std::vector<std::vector<int>> before;  // of each job that stays: its rows until now
  std::vector<Job*> staying;
  std::vector<Move> moves;
  size_t total = 0;
  for (size_t i = 0; i < order.size();) {
    auto found = jobs.find(order[i]);
    Job& job = found->second;
    if (job.changed && job.parents.empty()) {
      jobs.erase(found);
      order.erase(order.begin() + int64_t(i));
      continue;
    }
    before.push_back(job.rows);
    if (job.changed) {
      std::vector<int> rows;
      for (int parent : job.parents) rows.push_back(job.rows[size_t(parent)]);
      job.rows = std::move(rows);
    }
    staying.push_back(&job);
    total += job.rows.size();
    i++;
  }
  std::vector<char> taken(history.size(), 0);
  std::vector<std::vector<char>> moving;
  for (Job* job : staying) {
    std::vector<char> flags(job->rows.size(), 0);
    for (size_t k = 0; k < job->rows.size(); k++) {
      const int row = job->rows[k];
      flags[k] = taken[size_t(row)] || size_t(row) >= total;
      if (!flags[k]) taken[size_t(row)] = 1;
    }
    moving.push_back(std::move(flags));
  }
  std::vector<Move> others;
  for (size_t j = 0; j < staying.size(); j++)
    for (size_t k = 0; k < moving[j].size(); k++) {
      if (!moving[j][k]) continue;
      auto own = std::find_if(before[j].begin(), before[j].end(),
                              [&](int row) { return size_t(row) < total && !taken[size_t(row)]; });
      if (own == before[j].end()) {
        others.push_back({staying[j], k});
        continue;
      }
      taken[size_t(*own)] = 1;
      moves.push_back({staying[j], k});
      copy_row(staying[j]->rows[k], *own, true);
      staying[j]->rows[k] = *own;
    }
  size_t free = 0;
  for (const Move& move : others) {
    while (taken[free]) free++;
    taken[free] = 1;
    copy_row(move.job->rows[move.index], int(free), false);
    move.job->rows[move.index] = int(free);
  }
  count = int(total);
  for (Job* job : staying) job->changed = false;
}

void AttendantBatch::fill_inputs() {
  for (int32_t name : order) {
    Job& job = jobs.at(name);
    if (!job.ours) continue;
    for (size_t k = 0; k < job.rows.size(); k++) {
      const Hypothesis& live = job.live[k];
      const int row = job.rows[k];
      tokens[row] = live.ids.empty() ? job.first_token : live.ids.back();
      positions[row] = job.options.start_length + int64_t(live.ids.size());
      whole[row] = 0;
    }
  }
}

extern "C" {

AttendantBatch* attendant_batch_new(int32_t max_rows, int64_t* tokens, int64_t* positions, int64_t* whole,
                                    int64_t* source_rows, int32_t pad, int32_t bos, int32_t eos) {
  auto* batch = new AttendantBatch{tokens, positions, whole, source_rows, pad, bos, eos, 0, {}, {}, {}, {}, {}};
  batch->history.resize(size_t(max_rows));
  return batch;
}

void attendant_batch_free(AttendantBatch* batch) { delete batch; }

void attendant_batch_planes(AttendantBatch* batch, const AttendantPlane* planes, int32_t count) {
  batch->planes.assign(planes, planes + count);
}

int32_t attendant_batch_add(AttendantBatch* batch, int32_t name) {
  const int row = batch->count++;
  batch->history[size_t(row)].clear();
  batch->jobs[name].rows = {row};
  batch->order.push_back(name);
  return row;
}

void attendant_batch_adopt(AttendantBatch* batch, int32_t name, const AttendantOptions* options, const int64_t* ids,
                           const double* logprobs, int32_t length, double weight, int64_t token) {
  Job& job = batch->jobs.at(name);
  job.ours = true;
  job.options = *options;
  job.live.assign(1, Hypothesis{{ids, ids + length}, {logprobs, logprobs + length}, weight});
  job.finished.clear();
  job.first_token = token;
  job.decoded = 0;
  batch->fill_inputs();
}

int32_t attendant_batch_advance(AttendantBatch* batch, const int64_t* top_ids, const float* top_logprobs, int32_t top_k,
                                int32_t* names, int32_t* statuses) {
  for (int row = 0; row < batch->count; row++) batch->history[size_t(row)].push_back(batch->tokens[row]);
  int32_t found = 0;
  for (int32_t name : batch->order) {
    Job& job = batch->jobs.at(name);
    if (!job.ours) continue;
    if (!batch->rank(job, top_ids, top_logprobs, top_k)) {
      names[found] = name;
      statuses[found++] = HAND_BACK_NOW;
      continue;
    }
    job.decoded += int64_t(job.live.size());
    batch->keep(job);
    if (job.parents.empty()) {
      names[found] = name;
      statuses[found++] = DONE;
    } else if (job.options.forced_end && job.length() + 1 == job.options.max_length) {
      names[found] = name;
      statuses[found++] = HAND_BACK_NEXT;
    }
  }
  return found;
}

int32_t attendant_batch_commit(AttendantBatch* batch, int32_t count, const int32_t* names, const int32_t* counts,
                               const int32_t* parents) {
  for (int32_t i = 0; i < count; parents += counts[i++]) {
    Job& job = batch->jobs.at(names[i]);
    job.parents.assign(parents, parents + counts[i]);
    job.changed = true;
  }
  batch->move_rows();
  batch->fill_inputs();
  return batch->count;
}

int32_t attendant_batch_rows(const AttendantBatch* batch, int32_t name, int32_t* rows) {
  const Job& job = batch->jobs.at(name);
  std::copy(job.rows.begin(), job.rows.end(), rows);
  return int32_t(job.rows.size());
}

int64_t attendant_batch_state(const AttendantBatch* batch, int32_t name, int64_t* integers, double* numbers,
                              int64_t room) {
  const Job& job = batch->jobs.at(name);
  int64_t needed = 3;
  for (const auto& each : job.live) needed += 2 + int64_t(each.ids.size());
  for (const auto& each : job.finished) needed += 2 + int64_t(each.hypothesis.ids.size());
  if (needed > room) return -1;
  int64_t* at = integers;
  *at++ = int64_t(job.live.size());
  *at++ = int64_t(job.finished.size());
  *at++ = job.decoded;
  auto put = [&](const Hypothesis& each, int reason, double rank) {
    *at++ = int64_t(each.ids.size());
    *at++ = reason;
    at = std::copy(each.ids.begin(), each.ids.end(), at);
    *numbers++ = each.weight;
    *numbers++ = rank;
    numbers = std::copy(each.logprobs.begin(), each.logprobs.end(), numbers);
  };
  for (const auto& each : job.live) put(each, 0, 0);
  for (const auto& each : job.finished) put(each.hypothesis, each.reason, each.rank);
  return at - integers;
}

void attendant_batch_hand_back(AttendantBatch* batch, int32_t name) { batch->jobs.at(name).ours = false; }
}
