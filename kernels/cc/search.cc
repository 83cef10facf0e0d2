#include "search.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <unordered_map>

#include "errors.h"
#include "search_job.h"

using attendant::Candidate;
using attendant::Hypothesis;
using attendant::Job;

namespace {

void require(bool holds, AttendantError otherwise = OUT_OF_RANGE) {
  if (!holds) throw otherwise;
}

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

  Job& job(int32_t name) {
    const auto found = jobs.find(name);
    if (found == jobs.end()) throw UNKNOWN_JOB;
    return found->second;
  }

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

  // The rows follow what the searches chose, and have the inputs of the next step; `moved`: see
  // attendant_batch_advance.
  void follow(int64_t* moved = nullptr) {
    move_rows();
    for (int32_t name : order)
      if (const Job& each = job(name); each.ours) fill_inputs(each);
    if (!moved) return;
    moved[0] = count;
    moved[1] = count ? *std::max_element(positions, positions + count) : 0;
  }

  // A new job, with the row after those in use.
  Job& add(int32_t name) {
    require(size_t(count) < history.size(), NO_ROOM);
    const auto [added, is_new] = jobs.try_emplace(name);
    require(is_new);
    history[size_t(count)].clear();
    added->second.rows = {count++};
    order.push_back(name);
    return added->second;
  }

  void adopt(Job& job, const AttendantOptions& options, Hypothesis live, int64_t token) {
    require(job.rows.size() == 1 && !job.changed);
    require(options.beam_size > 0 && options.num_hypotheses > 0 && options.max_length > int(live.ids.size()));
    job.live.assign(1, std::move(live));
    job.options = options;
    job.finished.clear();
    job.first_token = token;
    job.decoded = 0;
    job.ours = true;
    fill_inputs(job);
  }
  int32_t advance(const int64_t* top_ids, const float* top_logprobs, int32_t top_k, int32_t* names, int32_t* statuses,
                  int64_t* moved);
  void move_rows();
  void fill_inputs(const Job& job);
};

// See attendant_batch_advance.
int32_t AttendantBatch::advance(const int64_t* top_ids, const float* top_logprobs, int32_t top_k, int32_t* names,
                                int32_t* statuses, int64_t* moved) {
  moved[0] = -1;
  bool all_ours = true;
  for (int row = 0; row < count; row++) history[size_t(row)].push_back(tokens[row]);
  int32_t found = 0;
  for (int32_t name : order) {
    Job& each = job(name);
    if (!each.ours) {
      all_ours = false;
      continue;
    }
    require(!each.changed);
    if (!rank(each, top_ids, top_logprobs, top_k)) {
      names[found] = name;
      statuses[found++] = HAND_BACK_NOW;
      continue;
    }
    each.decoded += int64_t(each.live.size());
    keep(each);
    if (each.parents.empty()) {
      names[found] = name;
      statuses[found++] = DONE;
    } else if (each.options.forced_end && each.length() + 1 == each.options.max_length) {
      names[found] = name;
      statuses[found++] = HAND_BACK_NEXT;
    }
  }
  if (all_ours && !found) follow(moved);
  return found;
}

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
  if (total > history.size()) throw NO_ROOM;
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

// The inputs of the next step, for one of our jobs.
void AttendantBatch::fill_inputs(const Job& job) {
  for (size_t k = 0; k < job.rows.size(); k++) {
    const Hypothesis& live = job.live[k];
    const int row = job.rows[k];
    tokens[row] = live.ids.empty() ? job.first_token : live.ids.back();
    positions[row] = job.options.start_length + int64_t(live.ids.size());
    whole[row] = 0;
  }
}

namespace {

// The result of a call, or the error that it throws.
template <class F>
auto guarded(F&& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (AttendantError error) {
    return error;
  } catch (const std::bad_alloc&) {
    return OUT_OF_MEMORY;
  } catch (const attendant::Error& error) {
    attendant::note_problem(error.what());
    return GRAPH_FAILED;
  } catch (...) {  // a length below zero, or beyond what a vector may have
    return OUT_OF_RANGE;
  }
}

// A source's keys and values, as they were encoded, into its slot.
void copy_source(const AttendantPlane& from, const AttendantPlane& to, const AttendantAdmission& each) {
  for (int64_t tensor = 0; tensor < to.tensors; tensor++)
    for (int64_t head = 0; head < to.heads; head++)
      std::memcpy(to.base + tensor * to.tensor_stride + each.slot * to.row_stride + head * to.head_stride,
                  from.base + tensor * from.tensor_stride + each.index * from.row_stride + head * from.head_stride,
                  size_t(each.tokens * to.entry));
}

}  // namespace

extern "C" {

AttendantBatch* attendant_batch_new(int32_t max_rows, int64_t* tokens, int64_t* positions, int64_t* whole,
                                    int64_t* source_rows, int32_t pad, int32_t bos, int32_t eos) {
  try {
    std::unique_ptr<AttendantBatch> batch(
        new AttendantBatch{tokens, positions, whole, source_rows, pad, bos, eos, 0, {}, {}, {}, {}, {}});
    batch->history.resize(size_t(max_rows));
    return batch.release();
  } catch (...) {
    return nullptr;
  }
}

void attendant_batch_free(AttendantBatch* batch) { delete batch; }

void attendant_batch_clear(AttendantBatch* batch) {
  batch->jobs.clear();
  batch->order.clear();
  batch->count = 0;
}

int32_t attendant_batch_planes(AttendantBatch* batch, const AttendantPlane* planes, int32_t count) {
  return guarded([&] {
    require(count >= 0);
    batch->planes.assign(planes, planes + count);
    return 0;
  });
}

int32_t attendant_batch_admit(AttendantBatch* batch, const AttendantPlane* encoded, const AttendantPlane* slots,
                              int32_t kinds, const AttendantAdmission* admissions, int32_t count) {
  return guarded([&] {
    for (int32_t i = 0; i < count; i++) {
      const AttendantAdmission& each = admissions[i];
      require(each.slot >= 0 && each.index >= 0 && each.tokens >= 0);
      for (int32_t kind = 0; kind < kinds; kind++) copy_source(encoded[kind], slots[kind], each);
      Job& job = batch->add(each.job);
      batch->source_rows[job.rows.front()] = each.slot;
      if (each.ours) batch->adopt(job, each.options, {}, each.token);
    }
    return batch->count;
  });
}

int32_t attendant_batch_adopt(AttendantBatch* batch, int32_t name, const AttendantOptions* options, const int64_t* ids,
                              const double* logprobs, int32_t length, double weight, int64_t token) {
  return guarded([&] {
    require(length >= 0);
    batch->adopt(batch->job(name), *options, Hypothesis{{ids, ids + length}, {logprobs, logprobs + length}, weight},
                 token);
    return 0;
  });
}

int32_t attendant_batch_advance(AttendantBatch* batch, const int64_t* top_ids, const float* top_logprobs, int32_t top_k,
                                int32_t* names, int32_t* statuses, int64_t* moved) {
  return guarded([&] { return batch->advance(top_ids, top_logprobs, top_k, names, statuses, moved); });
}

int32_t attendant_batch_run(AttendantBatch* batch, AttendantSteps* steps) {
  using Clock = std::chrono::steady_clock;
  steps->taken = 0;
  return guarded([&] {
    require(steps->most > 0);
    const auto started = Clock::now();
    for (auto before = started;;) {
      const int rows = batch->count;
      AttendantBinding* binding = steps->bindings[rows];
      require(binding);
      attendant::run(*binding);
      const int32_t found =
          batch->advance(steps->top_ids, steps->top_logprobs, steps->top_k, steps->jobs, steps->statuses, steps->moved);
      const auto now = Clock::now();
      steps->rows[steps->taken] = rows;
      steps->elapsed[steps->taken++] = std::chrono::duration<double>(now - before).count();
      before = now;
      if (found || steps->moved[0] < 0) return found;
      const bool bound = steps->bindings[batch->count] && steps->moved[1] < steps->room;
      const bool late = std::chrono::duration<double>(now - started).count() >= steps->seconds;
      if (!bound || late || steps->taken == steps->most) return 0;
      if (__atomic_load_n(steps->changes, __ATOMIC_ACQUIRE) != steps->seen) return 0;
    }
  });
}

int64_t attendant_batch_finish(AttendantBatch* batch, int32_t count, const int32_t* names, int64_t* integers,
                               double* numbers, int64_t room, int64_t* moved) {
  return guarded([&] {
    int64_t needed = 0;
    for (int32_t i = 0; i < count; i++) {
      const Job& job = batch->job(names[i]);
      require(job.ours && job.changed && job.parents.empty());
      needed += job.state_size();
    }
    require(needed <= room, NO_ROOM);
    attendant::Writer out{integers, numbers};
    for (int32_t i = 0; i < count; i++) {
      const Job& job = batch->job(names[i]);
      job.write_answers(out, batch->source_rows[job.rows.front()]);
    }
    batch->follow(moved);
    return out.integers - integers;
  });
}

int32_t attendant_batch_commit(AttendantBatch* batch, int32_t count, const int32_t* names, const int32_t* counts,
                               const int32_t* parents) {
  return guarded([&] {
    for (int32_t i = 0; i < count; parents += counts[i++]) {
      Job& job = batch->job(names[i]);
      require(counts[i] == 0 || (counts[i] > 0 && !job.ours));
      for (int32_t k = 0; k < counts[i]; k++) require(parents[k] >= 0 && size_t(parents[k]) < job.rows.size());
      job.parents.assign(parents, parents + counts[i]);
      job.changed = true;
    }
    batch->follow();
    return batch->count;
  });
}

int32_t attendant_batch_rows(AttendantBatch* batch, int32_t name, int32_t* rows) {
  return guarded([&] {
    const Job& job = batch->job(name);
    std::copy(job.rows.begin(), job.rows.end(), rows);
    return int32_t(job.rows.size());
  });
}

int64_t attendant_batch_state(AttendantBatch* batch, int32_t name, int64_t* integers, double* numbers, int64_t room) {
  return guarded([&] {
    const Job& job = batch->job(name);
    require(job.state_size() <= room, NO_ROOM);
    attendant::Writer out{integers, numbers};
    job.write_state(out);
    return out.integers - integers;
  });
}

int32_t attendant_batch_hand_back(AttendantBatch* batch, int32_t name) {
  return guarded([&] {
    batch->job(name).ours = false;
    return 0;
  });
}
}
