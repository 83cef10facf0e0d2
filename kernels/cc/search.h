// The search beside the kernels: greedy and beam search for a whole batch in one call a step, and the moves of rows
// that follow from it. Called by ctypes (service/engine/batch/compiled.py), without Python's lock. The Python searches
// (service/engine/search) are its definition: it decides to the bit as they do, and hands a job back to them where an
// option or a number is not plain.
//
// A job owns one or more rows of the batch, one for each live hypothesis; the rows in use are 0 to R - 1, without gaps.
// A job is either "ours" (adopted: its tokens are chosen here) or Python's (only its rows are moved here).
//
// No exception leaves these functions: a result below 0 is an AttendantError. After one the batch may be half changed;
// `attendant_batch_clear` makes it usable again.
#pragma once
#include <cstdint>

#include "graph.h"

#pragma GCC visibility push(default)
extern "C" {

struct AttendantPlane {  // tensors that hold one entry a row and position, laid out (tensors, rows, heads, length,
                         // entry)
  char* base;
  int64_t tensors, tensor_stride, row_stride, heads, head_stride, entry;  // strides and entry in bytes
};

struct AttendantOptions {
  int32_t beam_size, num_hypotheses, min_length, max_length;
  int32_t forced_end;      // 1: at max_length the end token is forced, which Python does
  int32_t early_stopping;  // 0 false, 1 true, 2 never
  int32_t start_length;    // start tokens before every target
  double length_penalty;
};

// A new job with one row. If it is ours, `options` and `token`, the last one fed, are those of its search, which has no
// token yet.
struct AttendantAdmission {
  int32_t job;
  int32_t slot;           // that its source gets
  int32_t index, tokens;  // of its source among those that were encoded
  int32_t ours;
  AttendantOptions options;
  int64_t token;
};

enum AttendantStatus { DONE = 1, HAND_BACK_NOW = 2, HAND_BACK_NEXT = 3 };

enum AttendantError {
  UNKNOWN_JOB = -1,
  NO_ROOM = -2,       // more rows than max_rows, or more state than the buffers hold
  OUT_OF_RANGE = -3,  // an argument that cannot be, or a call out of turn
  OUT_OF_MEMORY = -4,
  GRAPH_FAILED = -5,  // `attendant_problem` says why
};

// Several steps in one call: what they need, and what became of them.
struct AttendantSteps {
  AttendantBinding* const* bindings;  // of a step of R rows, at R; null: none is bound
  const int64_t* top_ids;             // what a step writes: its candidates
  const float* top_logprobs;
  int32_t top_k;
  int32_t most;            // steps
  int64_t room;            // positions that the cache has room for
  double seconds;          // after which no further step begins
  const int64_t* changes;  // another thread counts up what should be looked at; no further step begins then
  int64_t seen;            // of them, by the caller
  int32_t* jobs;           // as of `attendant_batch_advance`, of the last step
  int32_t* statuses;
  int64_t* moved;
  int32_t taken;    // steps
  int32_t* rows;    // of each step, `most` of them
  double* elapsed;  // seconds of each
};

struct AttendantBatch;

// tokens, positions, whole, source_rows: the inputs of the next step, max_rows each, written here for rows of our jobs.
// Null if there is no memory for it.
AttendantBatch* attendant_batch_new(int32_t max_rows, int64_t* tokens, int64_t* positions, int64_t* whole,
                                    int64_t* source_rows, int32_t pad, int32_t bos, int32_t eos);
void attendant_batch_free(AttendantBatch*);
// Drops all jobs and rows.
void attendant_batch_clear(AttendantBatch*);
// Where the cached keys and values of rows lie now. Returns 0.
int32_t attendant_batch_planes(AttendantBatch*, const AttendantPlane*, int32_t count);
// New jobs, each with the row after those in use; their sources, as they were encoded, are copied into their slots
// (`encoded`, `slots`: planes whose rows are sources, `kinds` of them). Returns the rows in use.
int32_t attendant_batch_admit(AttendantBatch*, const AttendantPlane* encoded, const AttendantPlane* slots,
                              int32_t kinds, const AttendantAdmission*, int32_t count);
// The job is ours from now on. It has one row, and one hypothesis of `length` tokens; `token` is the last one fed.
// Returns 0.
int32_t attendant_batch_adopt(AttendantBatch*, int32_t job, const AttendantOptions*, const int64_t* ids,
                              const double* logprobs, int32_t length, double weight, int64_t token);
// After a step, for our jobs. Writes the jobs that Python must look at, with their status, and returns their number:
// DONE and HAND_BACK_NOW before `commit`; HAND_BACK_NEXT is ours in this step, and Python's from the next on. If all
// jobs are ours and none is for Python to look at, the rows are moved at once: `moved` gets the rows in use and the
// furthest position; else it gets -1, and `commit` must follow.
int32_t attendant_batch_advance(AttendantBatch*, const int64_t* top_ids, const float* top_logprobs, int32_t top_k,
                                int32_t* jobs, int32_t* statuses, int64_t* moved);
// Steps and `advance`, over and over, while all jobs are ours: until a job is for Python to look at, a limit is
// reached, or a step needs what is not bound. At least one step. Returns what `attendant_batch_advance` does, of the
// last.
int32_t attendant_batch_run(AttendantBatch*, AttendantSteps*);
// After an `advance` in which jobs of ours were done and nothing else is left to decide: their answers, and then the
// rows move as in `advance`, to `moved`. Integers, of each of `jobs`: (slot of its source, decoded, hypotheses), then
// of each of its best hypotheses: tokens, reason, its ids; numbers: of each its weight, its rank, its
// log-probabilities. Returns how many integers; NO_ROOM, and nothing has changed, if the buffers, of `room` entries
// each, are too small.
int64_t attendant_batch_finish(AttendantBatch*, int32_t count, const int32_t* jobs, int64_t* integers, double* numbers,
                               int64_t room, int64_t* moved);
// Moves the rows. `parents` are those of Python's jobs that changed, one after the other, counts[i] of jobs[i]; a job
// with none leaves. Returns the rows in use.
int32_t attendant_batch_commit(AttendantBatch*, int32_t count, const int32_t* jobs, const int32_t* counts,
                               const int32_t* parents);
// The rows of a job, one for each live hypothesis; returns their number.
int32_t attendant_batch_rows(AttendantBatch*, int32_t job, int32_t* rows);
// The state of one of our jobs, live hypotheses first, then finished ones, best first; returns the number of integers:
// (live, finished, decoded), then of each hypothesis: tokens, reason (0 stop, 1 length), its ids. Numbers: of each its
// weight, its rank, its log-probabilities. NO_ROOM if the buffers, of `room` entries each, are too small.
int64_t attendant_batch_state(AttendantBatch*, int32_t job, int64_t* integers, double* numbers, int64_t room);
// Python's again, with the state that `attendant_batch_state` gives. Returns 0.
int32_t attendant_batch_hand_back(AttendantBatch*, int32_t job);
}
#pragma GCC visibility pop
