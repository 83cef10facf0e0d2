#include "graph.h"

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "errors.h"
#include "register.h"

namespace attendant {

namespace {

constexpr int ERROR_LEVEL = 3;  // of onnxruntime's log
constexpr int ARENA = 1, DEFAULT_MEMORY = 0;

thread_local std::string problem;

// A pointer that onnxruntime frees.
template <class T, ort::Place RELEASE>
class Owned {
 public:
  explicit Owned(const OrtApi* api) : api_(api) {}
  Owned(Owned&& other) noexcept : api_(other.api_), found_(other.found_) { other.found_ = nullptr; }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (found_) api_->release(RELEASE, found_);
  }
  T** place() { return &found_; }
  T* get() const { return found_; }

 private:
  const OrtApi* api_;
  T* found_ = nullptr;
};

using Options = Owned<OrtSessionOptions, ort::Place::ReleaseSessionOptions>;
using Session = Owned<OrtSession, ort::Place::ReleaseSession>;
using MemoryInfo = Owned<OrtMemoryInfo, ort::Place::ReleaseMemoryInfo>;
using Value = Owned<OrtValue, ort::Place::ReleaseValue>;
using Io = Owned<OrtIoBinding, ort::Place::ReleaseIoBinding>;

// The caller's memory as a tensor of onnxruntime's.
Value tensor(const OrtApi* api, const AttendantTensor& each) {
  require(each.rank >= 0 && each.rank <= 6, each.name, " has ", each.rank, " dimensions, and at most 6 are taken");
  MemoryInfo memory(api);
  check(api, api->call(ort::Place::CreateCpuMemoryInfo, ARENA, DEFAULT_MEMORY, memory.place()));
  Value value(api);
  check(api, api->call(ort::Place::CreateTensorWithDataAsOrtValue, static_cast<const OrtMemoryInfo*>(memory.get()),
                       each.data, size_t(each.bytes), &each.shape[0], size_t(each.rank), each.type, value.place()));
  return value;
}

// What f returns, or `otherwise` where it throws; then the reason is noted.
template <class R, class F>
R guarded(R otherwise, F&& f) noexcept {
  try {
    return f();
  } catch (const std::exception& error) {
    note_problem(error.what());
  } catch (...) {
    note_problem("an unknown error");
  }
  return otherwise;
}

}  // namespace

void note_problem(const char* why) noexcept {
  try {
    problem = why;
  } catch (...) {
    problem.clear();  // no memory for the sentence
  }
}

}  // namespace attendant

struct AttendantGraph {
  const OrtApi* api;
  std::vector<attendant::Value> weights;
  attendant::Session session;
};

struct AttendantBinding {
  const OrtApi* api;
  OrtSession* session;
  std::vector<attendant::Value> values;
  attendant::Io io;
};

namespace attendant {

void run(AttendantBinding& binding) {
  const OrtApi* api = binding.api;
  check(api, api->call(ort::Place::RunWithBinding, binding.session, static_cast<const OrtRunOptions*>(nullptr),
                       static_cast<const OrtIoBinding*>(binding.io.get())));
}

}  // namespace attendant

extern "C" {

AttendantGraph* attendant_graph_load(const char* path, int32_t threads, const AttendantTensor* weights, int64_t count) {
  using namespace attendant;
  return guarded<AttendantGraph*>(nullptr, [&] {
    const OrtApi* api = known_api();
    require(api, "no session has registered the operators yet");
    auto graph = std::make_unique<AttendantGraph>(AttendantGraph{api, {}, Session(api)});
    Options options(api);
    check(api, api->call(ort::Place::CreateSessionOptions, options.place()));
    OrtSessionOptions* chosen = options.get();
    check(api, api->call(ort::Place::SetIntraOpNumThreads, chosen, threads));
    check(api, api->call(ort::Place::SetInterOpNumThreads, chosen, 1));
    check(api, api->call(ort::Place::SetSessionLogSeverityLevel, chosen, ERROR_LEVEL));
    check(api, api->call(ort::Place::DisableMemPattern, chosen));  // a pattern is kept for every shape ever seen
    check(api, api->call(ort::Place::AddSessionConfigEntry, chosen, "session.force_spinning_stop", "1"));
    add_operators(api, chosen, threads);
    for (int64_t i = 0; i < count; i++) {
      graph->weights.push_back(tensor(api, weights[i]));
      const OrtValue* value = graph->weights.back().get();
      check(api, api->call(ort::Place::AddInitializer, chosen, weights[i].name, value));
    }
    OrtEnv* env = nullptr;  // onnxruntime has one for the process, which is never freed
    check(api, api->call(ort::Place::CreateEnv, ERROR_LEVEL, "attendant", &env));
    check(api, api->call(ort::Place::CreateSession, static_cast<const OrtEnv*>(env), path,
                         static_cast<const OrtSessionOptions*>(chosen), graph->session.place()));
    return graph.release();
  });
}

void attendant_graph_free(AttendantGraph* graph) { delete graph; }

AttendantBinding* attendant_graph_bind(AttendantGraph* graph, const AttendantTensor* tensors, int64_t inputs,
                                       int64_t count) {
  using namespace attendant;
  return guarded<AttendantBinding*>(nullptr, [&] {
    const OrtApi* api = graph->api;
    auto binding = std::make_unique<AttendantBinding>(AttendantBinding{api, graph->session.get(), {}, Io(api)});
    check(api, api->call(ort::Place::CreateIoBinding, graph->session.get(), binding->io.place()));
    for (int64_t i = 0; i < count; i++) {
      binding->values.push_back(tensor(api, tensors[i]));
      const OrtValue* value = binding->values.back().get();
      const auto place = i < inputs ? ort::Place::BindInput : ort::Place::BindOutput;
      check(api, api->call(place, binding->io.get(), tensors[i].name, value));
    }
    return binding.release();
  });
}

void attendant_binding_free(AttendantBinding* binding) { delete binding; }

int32_t attendant_binding_run(AttendantBinding* binding) {
  return attendant::guarded(-1, [&] {
    attendant::run(*binding);
    return 0;
  });
}

const char* attendant_problem() { return attendant::problem.c_str(); }
}
