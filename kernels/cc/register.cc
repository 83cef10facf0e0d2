// The library's entry points: onnxruntime calls RegisterCustomOps once for each session that is to be created.
#include "register.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

#include "operator.h"

#define ENTRY extern "C" __attribute__((visibility("default")))

namespace attendant {

namespace {

// An operator as onnxruntime knows it, with the machine that its kernels compute on.
struct CustomOp : OrtCustomOp {
  Declaration declaration;
  Machine machine;
};

struct Kernel {
  const OrtApi* api;
  const char* name;
  std::unique_ptr<Operator> op;
};

const CustomOp& of(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

OrtStatus* status(const OrtApi* api, const char* why) {
  return reinterpret_cast<OrtStatus* (*)(int, const char*)>(api->places[int(ort::Place::CreateStatus)])(ort::FAIL, why);
}

// Runs f; whatever it throws becomes a status.
template <class F>
OrtStatus* guarded(const OrtApi* api, F&& f) {
  try {
    f();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return status(api, "attendant: not enough memory");
  } catch (const std::exception& error) {
    return status(api, error.what());
  } catch (...) {
    return status(api, "attendant: an unknown error");
  }
}

OrtStatus* create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  return guarded(api, [&] {
    const Declaration& declaration = of(op).declaration;
    *kernel =
        new Kernel{api, declaration.name, declaration.create(Definition(api, info, declaration.name, of(op).machine))};
  });
}

OrtStatus* compute(void* p, OrtKernelContext* context) {
  const Kernel* kernel = static_cast<const Kernel*>(p);
  return guarded(kernel->api, [&] { kernel->op->run(Run(kernel->api, context, kernel->name)); });
}

ort::Type type_of(const std::vector<ort::Type>& types, size_t i) {
  return i < types.size() ? types[i] : ort::Type::any;
}
ort::Presence presence_of(const std::vector<ort::Type>& types, size_t i) {
  return i < types.size() ? ort::Presence::required : ort::Presence::variadic;
}

void fill(CustomOp& op) {
  op.version = ort::VERSION;
  op.GetName = [](const OrtCustomOp* p) { return of(p).declaration.name; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
  op.GetInputTypeCount = [](const OrtCustomOp* p) {
    return of(p).declaration.inputs.size() + of(p).declaration.more_inputs;
  };
  op.GetOutputTypeCount = [](const OrtCustomOp* p) {
    return of(p).declaration.outputs.size() + of(p).declaration.more_outputs;
  };
  op.GetInputType = [](const OrtCustomOp* p, size_t i) { return type_of(of(p).declaration.inputs, i); };
  op.GetOutputType = [](const OrtCustomOp* p, size_t i) { return type_of(of(p).declaration.outputs, i); };
  op.GetInputCharacteristic = [](const OrtCustomOp* p, size_t i) { return presence_of(of(p).declaration.inputs, i); };
  op.GetOutputCharacteristic = [](const OrtCustomOp* p, size_t i) { return presence_of(of(p).declaration.outputs, i); };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.CreateKernelV2 = create;
  op.KernelComputeV2 = compute;
  op.KernelDestroy = [](void* p) { delete static_cast<Kernel*>(p); };
}

// All operators for one number of threads. Sessions keep pointers to them, so they are never freed.
struct OperatorSet {
  std::array<CustomOp, 6> ops{};
  OrtCustomOpDomain* domain = nullptr;
};

std::atomic<const OrtApi*> known{nullptr};

OrtCustomOpDomain* operators(const OrtApi* api, Machine machine) {
  static std::mutex lock;
  static auto* sets = new std::map<std::pair<const OrtApi*, int>, std::unique_ptr<OperatorSet>>();
  const std::lock_guard<std::mutex> guard(lock);
  std::unique_ptr<OperatorSet>& set = (*sets)[{api, machine.threads}];
  if (set) return set->domain;
  auto made = std::make_unique<OperatorSet>();
  const Declaration declarations[] = {embed_source(),      embed_target(),  encoder_layer(),
                                      cross_keys_values(), decoder_layer(), vocabulary()};
  check(api, api->call(ort::Place::CreateCustomOpDomain, "attendant", &made->domain));
  for (size_t i = 0; i < made->ops.size(); i++) {
    made->ops[i].declaration = declarations[i];
    made->ops[i].machine = machine;
    fill(made->ops[i]);
    const OrtCustomOp* op = &made->ops[i];
    check(api, api->call(ort::Place::CustomOpDomain_Add, made->domain, op));
  }
  set = std::move(made);
  return set->domain;
}

const Path& path() {
  static const Path& chosen = [&]() -> const Path& {
    const char* name = std::getenv("ATTENDANT_KERNELS");
    return choose_path(name ? name : "");
  }();
  return chosen;
}

// The session's entry `attendant.threads`, 1 if there is none.
int threads_of(const OrtApi* api, const OrtSessionOptions* options) {
  int known = 0;
  check(api, api->call(ort::Place::HasSessionConfigEntry, options, "attendant.threads", &known));
  if (!known) return 1;
  char text[16] = {};
  size_t size = sizeof text;
  check(api, api->call(ort::Place::GetSessionConfigEntry, options, "attendant.threads", &text[0], &size));
  char* end = nullptr;
  const long threads = std::strtol(text, &end, 10);
  require(end != text && !*end && threads >= 1 && threads <= 1024, "attendant.threads is ", text,
          ", and must be a number from 1 to 1024");
  return int(threads);
}

}  // namespace

const OrtApi* known_api() { return known; }

void check(const OrtApi* api, OrtStatus* status) {
  if (!status) return;
  const std::string why = api->message(status);
  api->release(ort::Place::ReleaseStatus, status);
  fail("onnxruntime refused: ", why);
}

void add_operators(const OrtApi* api, OrtSessionOptions* options, int threads) {
  OrtCustomOpDomain* domain = operators(api, Machine{&path(), threads});
  check(api, api->call(ort::Place::AddCustomOpDomain, options, domain));
}

}  // namespace attendant

ENTRY OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ort::VERSION);
  if (!api) return nullptr;  // older than 1.20: onnxruntime has said so, and finds no operator
  return attendant::guarded(api, [&] {
    attendant::add_operators(api, options, attendant::threads_of(api, options));
    attendant::known = api;
  });
}

// Raised by one whenever a function or a structure that Python calls changes (kernels/__init__.py has its number).
ENTRY int attendant_interface() { return 1; }

// The chosen path's name, or null if ATTENDANT_KERNELS names one that this machine does not have.
ENTRY const char* attendant_path() {
  try {
    return attendant::path().name;
  } catch (const std::exception&) {
    return nullptr;
  }
}

// The names of the paths that this machine has, the fastest first, separated by spaces.
ENTRY const char* attendant_supported() {
  try {
    return attendant::supported_paths();
  } catch (const std::exception&) {
    return "";
  }
}
