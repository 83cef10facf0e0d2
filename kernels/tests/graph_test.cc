// Graphs that compiled code runs, and several steps in one call, over a session that is a function of the test.
#include "graph.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "fake_session.h"
#include "search.h"
#include "test.h"

namespace {

AttendantTensor tensor(const char* name, void* data, int64_t bytes, std::vector<int64_t> shape = {1}) {
  AttendantTensor made{name, data, bytes, 1, int32_t(shape.size()), {}};
  for (size_t i = 0; i < shape.size() && i < 6; i++) made.shape[i] = shape[i];
  return made;
}

struct Graph {
  float weight[2] = {};
  AttendantGraph* code = nullptr;

  explicit Graph(int threads = 2) {
    register_fake();
    const AttendantTensor given = tensor("w", &weight[0], sizeof weight, {2});
    code = attendant_graph_load("step.onnx", threads, &given, 1);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { attendant_graph_free(code); }
};

constexpr int max_rows = 6, top_k = 3, length = 16;
constexpr int32_t bos = 1, eos = 2;

// A batch and the steps of a graph that offers every row the tokens 3, 4 and the end, always with the same numbers.
struct Stepping {
  Graph graph;
  std::vector<int64_t> tokens = std::vector<int64_t>(max_rows), positions = tokens, whole = tokens, sources = tokens;
  std::vector<int64_t> cache = std::vector<int64_t>(max_rows * length), ids = std::vector<int64_t>(max_rows * top_k);
  std::vector<float> logprobs = std::vector<float>(max_rows * top_k);
  std::vector<int32_t> names = std::vector<int32_t>(max_rows), statuses = names, rows = std::vector<int32_t>(64);
  std::vector<double> elapsed = std::vector<double>(64);
  int64_t moved[2] = {}, changes = 0;
  std::vector<AttendantBinding*> bindings = std::vector<AttendantBinding*>(max_rows + 1);
  AttendantBatch* code =
      attendant_batch_new(max_rows, tokens.data(), positions.data(), whole.data(), sources.data(), 0, bos, eos);
  AttendantSteps steps{};
  int runs = 0;
  float best = -0.5f;

  Stepping() {
    const AttendantPlane plane{reinterpret_cast<char*>(cache.data()), 1, 0, length * 8, 1, 0, 8};
    attendant_batch_planes(code, &plane, 1);
    for (int64_t count = 1; count <= max_rows; count++) bind(count);
    steps.bindings = bindings.data();
    steps.top_ids = ids.data();
    steps.top_logprobs = logprobs.data();
    steps.top_k = top_k;
    steps.most = 64;
    steps.room = length;
    steps.seconds = 60;
    steps.changes = &changes;
    steps.jobs = names.data();
    steps.statuses = statuses.data();
    steps.moved = moved;
    steps.rows = rows.data();
    steps.elapsed = elapsed.data();
    Sessions::step = [this](const Bound& bound) { step(bound.at("token").shape[0]); };
  }
  Stepping(const Stepping&) = delete;
  Stepping& operator=(const Stepping&) = delete;
  ~Stepping() {
    for (AttendantBinding* binding : bindings) attendant_binding_free(binding);
    attendant_batch_free(code);
    Sessions::step = nullptr;
  }

  void bind(int64_t count) {
    const AttendantTensor both[2] = {tensor("token", tokens.data(), count * 8, {count}),
                                     tensor("top_ids", ids.data(), count * top_k * 8, {count, top_k})};
    bindings[size_t(count)] = attendant_graph_bind(graph.code, both, 1, 2);
  }
  void step(int64_t count) {
    runs++;
    for (int64_t row = 0; row < count; row++) {
      cache[size_t(row * length + positions[size_t(row)])] = tokens[size_t(row)];
      const int64_t offered[top_k] = {3, 4, eos};
      const float numbers[top_k] = {best, -1.0f, -2.0f};
      std::copy_n(&offered[0], top_k, &ids[size_t(row * top_k)]);
      std::copy_n(&numbers[0], top_k, &logprobs[size_t(row * top_k)]);
    }
  }
  int32_t add(int32_t job, int beam, int most) {
    const AttendantAdmission admission{job, 0, 0, 0, 1, {beam, 1, 0, most, 0, 0, 0, 1.0}, bos};
    return attendant_batch_admit(code, nullptr, nullptr, 0, &admission, 1);
  }
  int32_t run() { return attendant_batch_run(code, &steps); }
};

}  // namespace

TEST(a_graph_is_loaded_with_its_weights_and_threads_and_all_of_it_is_given_back) {
  const int before = Sessions::alive;
  {
    Graph graph(3);
    CHECK(graph.code != nullptr);
    CHECK(Sessions::threads == 3 && Sessions::weights.at("w") == 8);
    int64_t value = 7;
    const AttendantTensor input = tensor("token", &value, 8);
    AttendantBinding* binding = attendant_graph_bind(graph.code, &input, 1, 1);
    int64_t seen = 0;
    Sessions::step = [&](const Bound& bound) { seen = *static_cast<int64_t*>(bound.at("token").data); };
    CHECK(binding && attendant_binding_run(binding) == 0 && seen == 7);
    attendant_binding_free(binding);
    Sessions::step = nullptr;
  }
  CHECK(Sessions::alive == before);
}

TEST(what_onnxruntime_refuses_is_a_sentence_and_leaves_nothing_behind) {
  const int before = Sessions::alive;
  Sessions::refuse = "CreateSession";
  {
    Graph refused;
    CHECK(refused.code == nullptr);
    CHECK(std::strstr(attendant_problem(), "CreateSession was refused"));
  }
  Sessions::refuse = "BindInput";
  {
    Graph graph;
    int64_t value = 0;
    const AttendantTensor input = tensor("token", &value, 8);
    CHECK(attendant_graph_bind(graph.code, &input, 1, 1) == nullptr);
    CHECK(std::strstr(attendant_problem(), "BindInput was refused"));
    Sessions::refuse.clear();
    AttendantTensor deep = input;
    deep.rank = 7;
    CHECK(attendant_graph_bind(graph.code, &deep, 1, 1) == nullptr);
    CHECK(std::strstr(attendant_problem(), "at most 6"));
  }
  CHECK(Sessions::alive == before);
}

TEST(steps_follow_each_other_until_a_job_is_done) {
  Stepping all;
  CHECK(all.add(5, 1, 4) == 1);
  CHECK(all.run() == 1);
  CHECK(all.names[0] == 5 && all.statuses[0] == DONE && all.moved[0] == -1);
  CHECK(all.steps.taken == 4 && all.runs == 4);
  for (int step = 0; step < 4; step++) CHECK(all.rows[size_t(step)] == 1 && all.elapsed[size_t(step)] >= 0);
  int64_t integers[16];
  double numbers[16];
  CHECK(attendant_batch_finish(all.code, 1, all.names.data(), integers, numbers, 16, all.moved) == 9);
  CHECK(integers[1] == 4 && integers[3] == 4 && integers[5] == 3 && integers[8] == 3);  // decoded, length, ids
}

TEST(steps_in_one_call_leave_what_as_many_calls_of_one_step_leave) {
  Stepping together, one_by_one;
  Sessions::step = nullptr;
  for (Stepping* each : {&together, &one_by_one}) {
    Sessions::step = [each](const Bound& bound) { each->step(bound.at("token").shape[0]); };
    each->add(1, 3, 9);
    each->add(2, 1, 12);
    each->steps.most = each == &together ? 7 : 1;
    for (int call = 0; call < (each == &together ? 1 : 7); call++) CHECK(each->run() == 0);
  }
  CHECK(together.steps.taken == 7 && one_by_one.steps.taken == 1 && one_by_one.runs == 7);
  CHECK(together.tokens == one_by_one.tokens && together.positions == one_by_one.positions);
  CHECK(together.cache == one_by_one.cache);
  CHECK(together.moved[0] == 4 && one_by_one.moved[0] == 4 && together.moved[1] == 7);
  CHECK(together.rows[0] == 2 && together.rows[1] == 3);  // the beam branches: one of three candidates ends
}

TEST(no_further_step_begins_at_a_limit) {
  {
    Stepping all;
    all.add(1, 1, 12);
    all.steps.seen = -1;  // something has changed
    CHECK(all.run() == 0 && all.steps.taken == 1);
    all.steps.seen = all.changes;
    all.steps.seconds = 0;
    CHECK(all.run() == 0 && all.steps.taken == 1);
    all.steps.seconds = 60;
    all.steps.room = 4;  // two positions are taken
    CHECK(all.run() == 0 && all.steps.taken == 2 && all.moved[1] == 4);
    all.steps.room = length;
    all.steps.most = 3;
    CHECK(all.run() == 0 && all.steps.taken == 3);
  }
  Stepping beam;
  beam.add(1, 3, 12);
  attendant_binding_free(beam.bindings[2]);
  beam.bindings[2] = nullptr;
  CHECK(beam.run() == 0 && beam.steps.taken == 1 && beam.moved[0] == 2);
  CHECK(beam.run() == OUT_OF_RANGE && beam.steps.taken == 0);
  beam.bind(2);
  CHECK(beam.run() == 1 && beam.statuses[0] == DONE);
}

TEST(a_change_that_another_thread_counts_ends_the_steps_soon) {
  Stepping all;
  all.add(1, 1, length);
  std::atomic<bool> begun{false};
  Sessions::step = [&](const Bound& bound) {
    all.best = -0.5f;
    all.step(bound.at("token").shape[0]);
    begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  std::thread other([&] {
    while (!begun) std::this_thread::yield();
    __atomic_add_fetch(&all.changes, 1, __ATOMIC_RELEASE);
  });
  CHECK(all.run() == 0);
  other.join();
  CHECK(all.steps.taken < length - 2);
}

TEST(a_step_that_fails_is_a_sentence_and_the_batch_can_be_cleared_and_used_again) {
  Stepping all;
  all.add(1, 2, 8);
  Sessions::refuse = "RunWithBinding";
  CHECK(all.run() == GRAPH_FAILED && all.steps.taken == 0);
  CHECK(std::strstr(attendant_problem(), "RunWithBinding was refused"));
  Sessions::refuse.clear();
  attendant_batch_clear(all.code);
  CHECK(all.add(2, 1, 4) == 1);
  CHECK(all.run() == 1 && all.names[0] == 2);
}

TEST(a_number_that_is_none_ends_the_steps_and_is_handed_back) {
  Stepping all;
  all.add(1, 1, 8);
  all.steps.most = 2;
  CHECK(all.run() == 0);
  all.best = NAN;
  CHECK(all.run() == 1 && all.steps.taken == 1 && all.statuses[0] == HAND_BACK_NOW && all.moved[0] == -1);
}
