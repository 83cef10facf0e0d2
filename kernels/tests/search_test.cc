// The search beside the kernels, called as Python calls it: greedy and beam search over tables made by hand, and what
// every entry point answers to a caller that is wrong, or where memory is at its end.
#include "search.h"

#include <cmath>
#include <cstdlib>
#include <new>

#include "test.h"

namespace {
long allocations_left = -1;  // until one fails; negative: none does
}

// Replaced for the whole program, so that a test can let the allocations of a call fail, one after the other.
__attribute__((noinline)) void* operator new(size_t size) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* found = std::malloc(size ? size : 1)) return found;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(size_t size, const std::nothrow_t&) noexcept { return std::malloc(size); }
__attribute__((noinline)) void operator delete(void* pointer) noexcept { std::free(pointer); }
__attribute__((noinline)) void operator delete(void* pointer, size_t) noexcept { std::free(pointer); }

namespace {

constexpr int max_rows = 6, top_k = 3, length = 8;
constexpr int32_t pad = 0, bos = 1, eos = 2;

// A batch with its arrays, and a cache whose entry for a row and position is the token fed there.
struct Batch {
  std::vector<int64_t> tokens = std::vector<int64_t>(max_rows), positions = tokens, whole = tokens, sources = tokens;
  std::vector<int64_t> cache = std::vector<int64_t>(max_rows * length);
  std::vector<int32_t> names = std::vector<int32_t>(max_rows), statuses = names;
  int64_t moved[2] = {};
  AttendantBatch* code;

  Batch()
      : code(attendant_batch_new(max_rows, tokens.data(), positions.data(), whole.data(), sources.data(), pad, bos,
                                 eos)) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() { attendant_batch_free(code); }

  int32_t send_planes() {
    const AttendantPlane plane{reinterpret_cast<char*>(cache.data()), 1, 0, length * 8, 1, 0, 8};
    return attendant_batch_planes(code, &plane, 1);
  }

  // A job of Python's with a source in slot 0; returns its row.
  int32_t add(int32_t job) {
    const AttendantAdmission admission{job, 0, 0, 0, 0, {}, bos};
    const int32_t rows = attendant_batch_admit(code, nullptr, nullptr, 0, &admission, 1);
    return rows < 0 ? rows : rows - 1;
  }

  int32_t adopt(int32_t job, int beam, int most = length) {
    const AttendantOptions options{beam, 1, 0, most, 0, 0, 0, 1.0};
    return attendant_batch_adopt(code, job, &options, nullptr, nullptr, 0, 0.0, bos);
  }

  // A step over `rows` rows: the candidates of a row are 3, 4 and the end token, always with the same numbers.
  int32_t advance(int rows) {
    std::vector<int64_t> ids;
    std::vector<float> logprobs;
    for (int row = 0; row < rows; row++) {
      cache[size_t(row * length + int(positions[size_t(row)]))] = tokens[size_t(row)];
      ids.insert(ids.end(), {3, 4, eos});
      logprobs.insert(logprobs.end(), {-0.5f, -1.0f, -2.0f});
    }
    return attendant_batch_advance(code, ids.data(), logprobs.data(), top_k, names.data(), statuses.data(), moved);
  }

  int32_t commit() { return attendant_batch_commit(code, 0, nullptr, nullptr, nullptr); }

  int32_t leave(int32_t job) {
    const int32_t none = 0;
    return attendant_batch_commit(code, 1, &job, &none, nullptr);
  }
};

// Two jobs, a beam of 3 and greedy, for `steps` steps, then the state of the first. Returns the first error.
int64_t decode(Batch& batch, int steps) {
  if (!batch.code) return OUT_OF_MEMORY;
  int64_t found = batch.send_planes();
  for (int32_t job = 7; job < 9 && found >= 0; job++) {
    found = batch.add(job);
    if (found >= 0) found = batch.adopt(job, job == 7 ? 3 : 1);
  }
  int64_t rows = 2;
  for (int step = 0; step < steps && found >= 0; step++) {
    found = batch.advance(int(rows));
    if (found >= 0) found = rows = batch.commit();
  }
  if (found < 0) return found;
  std::vector<int64_t> integers(100);
  std::vector<double> numbers(100);
  return attendant_batch_state(batch.code, 7, integers.data(), numbers.data(), 100);
}

}  // namespace

TEST(a_greedy_search_takes_the_first_candidate_until_its_limit) {
  Batch batch;
  CHECK(batch.send_planes() == 0);
  CHECK(batch.add(5) == 0);
  CHECK(batch.adopt(5, 1, 4) == 0);
  CHECK(batch.tokens[0] == bos && batch.positions[0] == 0);
  for (int step = 0; step < 3; step++) {
    CHECK(batch.advance(1) == 0);
    CHECK(batch.commit() == 1);
    CHECK(batch.tokens[0] == 3 && batch.positions[0] == step + 1);
  }
  CHECK(batch.advance(1) == 1);
  CHECK(batch.names[0] == 5 && batch.statuses[0] == DONE);
  int64_t integers[16];
  double numbers[16];
  CHECK(attendant_batch_state(batch.code, 5, integers, numbers, 16) == 3 + 2 + 4);
  CHECK(integers[0] == 0 && integers[1] == 1 && integers[2] == 4);  // none live, one finished, four decoded
  CHECK(integers[3] == 4 && integers[4] == 1 && integers[8] == 3);  // four tokens, ended by length
  CHECK(numbers[0] == -2.0);
  CHECK(attendant_batch_hand_back(batch.code, 5) == 0);
  CHECK(batch.leave(5) == 0);
}

TEST(the_rows_of_a_beam_hold_the_tokens_of_its_hypotheses) {
  Batch batch;
  CHECK(decode(batch, 3) > 0);
  int32_t rows[max_rows];
  CHECK(attendant_batch_rows(batch.code, 7, rows) == 3);
  int64_t integers[100];
  double numbers[100];
  attendant_batch_state(batch.code, 7, integers, numbers, 100);
  CHECK(integers[0] == 3);
  const int64_t* each = integers + 3;
  for (int k = 0; k < 3; k++, each += 2 + each[0]) {
    const int64_t* held = batch.cache.data() + rows[k] * length;
    CHECK(each[0] == 3 && held[0] == bos && held[1] == each[2] && held[2] == each[3]);
    CHECK(batch.tokens[size_t(rows[k])] == each[4]);
  }
}

TEST(rows_are_moved_at_once_where_nothing_is_left_to_python) {
  Batch batch;
  batch.add(1);
  batch.adopt(1, 2);
  CHECK(batch.advance(1) == 0);
  CHECK(batch.moved[0] == 2 && batch.moved[1] == 1);
  batch.add(2);  // it is Python's
  CHECK(batch.advance(3) == 0);
  CHECK(batch.moved[0] == -1);
}

TEST(jobs_are_admitted_with_their_sources_and_finished_with_their_answers) {
  Batch batch;
  // Two kinds of two tensors with two heads: three sources of four tokens as encoded, slots of six tokens.
  std::vector<int8_t> encoded(2 * 3 * 2 * 4), slots(2 * max_rows * 2 * 6);
  for (size_t i = 0; i < encoded.size(); i++) encoded[i] = int8_t(i);
  const AttendantPlane from{reinterpret_cast<char*>(encoded.data()), 2, 3 * 8, 8, 2, 4, 1};
  const AttendantPlane to{reinterpret_cast<char*>(slots.data()), 2, max_rows * 12, 12, 2, 6, 1};
  const AttendantOptions greedy{1, 1, 0, 1, 0, 0, 0, 1.0}, beam{2, 1, 0, length, 0, 0, 0, 1.0};
  const AttendantAdmission admissions[2] = {{7, 4, 2, 3, 1, greedy, bos}, {8, 1, 0, 4, 1, beam, bos}};
  CHECK(attendant_batch_admit(batch.code, &from, &to, 1, admissions, 2) == 2);
  CHECK(batch.sources[0] == 4 && batch.sources[1] == 1 && batch.tokens[0] == bos);
  const int8_t* slot = slots.data() + max_rows * 12 + 4 * 12;  // of the first job, in the second tensor
  CHECK(slot[0] == 24 + 16 && slot[2] == 24 + 18 && slot[3] == 0 && slot[6] == 24 + 20);

  CHECK(batch.advance(2) == 1 && batch.statuses[0] == DONE && batch.moved[0] == -1);
  int64_t integers[16];
  double numbers[16];
  const int32_t unknown = 99, going_on = 8;
  CHECK(attendant_batch_finish(batch.code, 1, &unknown, integers, numbers, 16, batch.moved) == UNKNOWN_JOB);
  CHECK(attendant_batch_finish(batch.code, 1, &going_on, integers, numbers, 16, batch.moved) == OUT_OF_RANGE);
  CHECK(attendant_batch_finish(batch.code, 1, batch.names.data(), integers, numbers, 2, batch.moved) == NO_ROOM);
  CHECK(attendant_batch_finish(batch.code, 1, batch.names.data(), integers, numbers, 16, batch.moved) == 6);
  const int64_t expected[6] = {4, 1, 1, 1, 1, 3};  // its slot, decoded, one answer: one token, by length, 3
  for (int i = 0; i < 6; i++) CHECK(integers[i] == expected[i]);
  CHECK(numbers[0] == -0.5 && numbers[2] == -0.5);
  CHECK(batch.moved[0] == 2 && batch.moved[1] == 1);  // the rows of the other's beam
  CHECK(batch.sources[0] == 1 && batch.sources[1] == 1);
}

TEST(a_number_that_is_none_is_handed_back) {
  Batch batch;
  batch.add(1);
  batch.adopt(1, 2);
  const int64_t ids[top_k] = {3, 4, 5};
  const float logprobs[top_k] = {NAN, NAN, NAN};
  CHECK(attendant_batch_advance(batch.code, ids, logprobs, top_k, batch.names.data(), batch.statuses.data(),
                                batch.moved) == 1);
  CHECK(batch.statuses[0] == HAND_BACK_NOW && batch.moved[0] == -1);
}

TEST(a_job_that_is_not_there_is_an_error_and_disturbs_nothing) {
  Batch batch;
  CHECK(decode(batch, 2) > 0);
  int32_t rows[max_rows];
  int64_t integers[100];
  double numbers[100];
  const int32_t unknown = 99, one = 1, parent = 0;
  CHECK(batch.adopt(unknown, 1) == UNKNOWN_JOB);
  CHECK(attendant_batch_rows(batch.code, unknown, rows) == UNKNOWN_JOB);
  CHECK(attendant_batch_state(batch.code, unknown, integers, numbers, 100) == UNKNOWN_JOB);
  CHECK(attendant_batch_hand_back(batch.code, unknown) == UNKNOWN_JOB);
  CHECK(attendant_batch_commit(batch.code, 1, &unknown, &one, &parent) == UNKNOWN_JOB);
  CHECK(attendant_batch_rows(batch.code, 7, rows) == 3);
  CHECK(batch.advance(4) == 0);
  CHECK(batch.commit() == 4);
}

TEST(arguments_out_of_range_are_errors) {
  Batch batch;
  CHECK(attendant_batch_new(-1, nullptr, nullptr, nullptr, nullptr, pad, bos, eos) == nullptr);
  CHECK(attendant_batch_planes(batch.code, nullptr, -1) == OUT_OF_RANGE);
  batch.add(1);
  CHECK(batch.add(1) == OUT_OF_RANGE);  // it has rows already
  const AttendantOptions good{2, 1, 0, 8, 0, 0, 0, 1.0};
  AttendantOptions none = good, answers = good, never = good;
  none.beam_size = 0;
  answers.num_hypotheses = 0;
  never.max_length = 0;
  for (const auto& options : {none, answers, never})
    CHECK(attendant_batch_adopt(batch.code, 1, &options, nullptr, nullptr, 0, 0, bos) == OUT_OF_RANGE);
  CHECK(attendant_batch_adopt(batch.code, 1, &good, nullptr, nullptr, -1, 0, bos) == OUT_OF_RANGE);
  const int32_t job = 1, negative = -1, two = 2;
  const int32_t beyond[2] = {0, 1}, below[2] = {0, -1};
  CHECK(attendant_batch_commit(batch.code, 1, &job, &negative, beyond) == OUT_OF_RANGE);
  CHECK(attendant_batch_commit(batch.code, 1, &job, &two, beyond) == OUT_OF_RANGE);
  CHECK(attendant_batch_commit(batch.code, 1, &job, &two, below) == OUT_OF_RANGE);
}

TEST(a_second_step_before_the_rows_have_moved_is_an_error) {
  Batch batch;
  CHECK(decode(batch, 2) > 0);
  CHECK(batch.add(1) == 4);  // it is Python's, which so has to move the rows
  CHECK(batch.advance(5) == 0);
  CHECK(batch.advance(5) == OUT_OF_RANGE);
}

TEST(more_rows_than_there_are_is_an_error) {
  Batch batch;
  for (int32_t job = 0; job < max_rows; job++) CHECK(batch.add(job) == job);
  CHECK(batch.add(max_rows) == NO_ROOM);
  const int32_t job = 0, two = 2, parents[2] = {0, 0};
  CHECK(attendant_batch_commit(batch.code, 1, &job, &two, parents) == NO_ROOM);
  int64_t integers[3];
  double numbers[3];
  CHECK(attendant_batch_state(batch.code, 1, integers, numbers, 2) == NO_ROOM);
  CHECK(attendant_batch_state(batch.code, 1, integers, numbers, 3) == 3);
}

TEST(wherever_memory_ends_the_call_says_so_and_the_batch_can_be_cleared_and_used_again) {
  std::vector<int64_t> ids;
  std::vector<float> logprobs;
  for (int row = 0; row < 4; row++) {
    ids.insert(ids.end(), {3, 4, eos});
    logprobs.insert(logprobs.end(), {-0.5f, -1.0f, -2.0f});
  }
  Batch whole;
  const int64_t expected = decode(whole, 4);
  int failed = 0;
  for (bool complete = false; !complete; failed++) {
    Batch batch;
    allocations_left = failed;
    int64_t found = batch.send_planes();
    for (int32_t job = 7; job < 9 && found >= 0; job++) found = batch.add(job);
    for (int32_t job = 7; job < 9 && found >= 0; job++) found = batch.adopt(job, job == 7 ? 3 : 1);
    for (int step = 0; step < 4 && found >= 0; step++) {
      found = attendant_batch_advance(batch.code, ids.data(), logprobs.data(), top_k, batch.names.data(),
                                      batch.statuses.data(), batch.moved);
      if (found >= 0) found = batch.commit();
    }
    complete = allocations_left >= 0;
    allocations_left = -1;
    CHECK(found == (complete ? 4 : int(OUT_OF_MEMORY)));
    attendant_batch_clear(batch.code);
    CHECK(decode(batch, 4) == expected);
  }
  CHECK(failed > 20);
  for (long first : {0, 1}) {  // of the batch itself, and of its rows
    allocations_left = first;
    CHECK(attendant_batch_new(max_rows, nullptr, nullptr, nullptr, nullptr, pad, bos, eos) == nullptr);
  }
  allocations_left = -1;
}
