#include "fake_session.h"

struct OrtSessionOptions {
  std::map<std::string, int64_t> weights;
  int threads = 0;
};
struct OrtSession {};
struct OrtEnv {};
struct OrtMemoryInfo {};
struct OrtCustomOpDomain {};
struct OrtIoBinding {
  Bound bound;
};

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*);

namespace {

template <class T>
void made(T** out, T* object) {
  *out = object;
  Sessions::alive++;
}
template <class T>
void release(T* object) {
  delete object;
  Sessions::alive--;
}

OrtStatus* refusal(const char* place) {
  return Sessions::refuse == place ? new OrtStatus{std::string(place) + " was refused"} : nullptr;
}

OrtStatus* create_options(OrtSessionOptions** out) {
  made(out, new OrtSessionOptions);
  return nullptr;
}
OrtStatus* set_threads(OrtSessionOptions* options, int threads) {
  options->threads = threads;
  return nullptr;
}
OrtStatus* set_number(OrtSessionOptions*, int) { return nullptr; }
OrtStatus* disable(OrtSessionOptions*) { return nullptr; }
OrtStatus* add_entry(OrtSessionOptions*, const char*, const char*) { return nullptr; }
OrtStatus* has_entry(const OrtSessionOptions*, const char*, int* has) {
  *has = 0;
  return nullptr;
}
OrtStatus* create_domain(const char*, OrtCustomOpDomain** out) {
  static OrtCustomOpDomain domain;  // the library never frees one
  *out = &domain;
  return nullptr;
}
OrtStatus* add_operator(OrtCustomOpDomain*, const OrtCustomOp*) { return nullptr; }
OrtStatus* add_domain(OrtSessionOptions*, OrtCustomOpDomain*) { return nullptr; }
OrtStatus* create_env(int, const char*, OrtEnv** out) {
  static OrtEnv env;
  *out = &env;
  return nullptr;
}
OrtStatus* create_memory_info(int, int, OrtMemoryInfo** out) {
  made(out, new OrtMemoryInfo);
  return nullptr;
}
// A value without bytes of its own: its bytes hold the tensor.
OrtStatus* create_tensor(const OrtMemoryInfo*, void* data, size_t bytes, const int64_t* shape, size_t rank, int type,
                         OrtValue** out) {
  made(out, new OrtValue{ort::Type(type), {shape, shape + rank}, std::vector<char>(sizeof data + sizeof bytes)});
  std::memcpy((*out)->bytes.data(), &data, sizeof data);
  std::memcpy((*out)->bytes.data() + sizeof data, &bytes, sizeof bytes);
  return nullptr;
}
BoundTensor tensor_of(const OrtValue& value) {
  BoundTensor tensor{nullptr, 0, value.shape, int(value.type)};
  std::memcpy(&tensor.data, value.bytes.data(), sizeof tensor.data);
  std::memcpy(&tensor.bytes, value.bytes.data() + sizeof tensor.data, sizeof tensor.bytes);
  return tensor;
}
OrtStatus* add_initializer(OrtSessionOptions* options, const char* name, const OrtValue* value) {
  options->weights[name] = int64_t(tensor_of(*value).bytes);
  return nullptr;
}
OrtStatus* create_session(const OrtEnv*, const char*, const OrtSessionOptions* options, OrtSession** out) {
  if (OrtStatus* status = refusal("CreateSession")) return status;
  Sessions::weights = options->weights;
  Sessions::threads = options->threads;
  made(out, new OrtSession);
  return nullptr;
}
OrtStatus* create_binding(OrtSession*, OrtIoBinding** out) {
  made(out, new OrtIoBinding);
  return nullptr;
}
OrtStatus* bind_input(OrtIoBinding* binding, const char* name, const OrtValue* value) {
  if (OrtStatus* status = refusal("BindInput")) return status;
  binding->bound[name] = tensor_of(*value);
  return nullptr;
}
OrtStatus* bind_output(OrtIoBinding* binding, const char* name, const OrtValue* value) {
  binding->bound[name] = tensor_of(*value);
  return nullptr;
}
OrtStatus* run(OrtSession*, const OrtRunOptions*, const OrtIoBinding* binding) {
  if (OrtStatus* status = refusal("RunWithBinding")) return status;
  Sessions::step(binding->bound);
  return nullptr;
}

template <class F>
void put(OrtApi& api, ort::Place place, F* function) {
  api.places[int(place)] = reinterpret_cast<void*>(function);
}

const OrtApi* api(uint32_t) { return Fake::table(); }

}  // namespace

void put_sessions(OrtApi& api) {
  using ort::Place;
  put(api, Place::CreateSessionOptions, create_options);
  put(api, Place::ReleaseSessionOptions, release<OrtSessionOptions>);
  put(api, Place::SetIntraOpNumThreads, set_threads);
  put(api, Place::SetInterOpNumThreads, set_number);
  put(api, Place::SetSessionLogSeverityLevel, set_number);
  put(api, Place::DisableMemPattern, disable);
  put(api, Place::AddSessionConfigEntry, add_entry);
  put(api, Place::HasSessionConfigEntry, has_entry);
  put(api, Place::CreateCustomOpDomain, create_domain);
  put(api, Place::CustomOpDomain_Add, add_operator);
  put(api, Place::AddCustomOpDomain, add_domain);
  put(api, Place::CreateEnv, create_env);
  put(api, Place::CreateCpuMemoryInfo, create_memory_info);
  put(api, Place::ReleaseMemoryInfo, release<OrtMemoryInfo>);
  put(api, Place::CreateTensorWithDataAsOrtValue, create_tensor);
  put(api, Place::ReleaseValue, release<OrtValue>);
  put(api, Place::AddInitializer, add_initializer);
  put(api, Place::CreateSession, create_session);
  put(api, Place::ReleaseSession, release<OrtSession>);
  put(api, Place::CreateIoBinding, create_binding);
  put(api, Place::ReleaseIoBinding, release<OrtIoBinding>);
  put(api, Place::BindInput, bind_input);
  put(api, Place::BindOutput, bind_output);
  put(api, Place::RunWithBinding, run);
}

void register_fake() {
  static const OrtApiBase base{api, nullptr};
  RegisterCustomOps(nullptr, &base);
}
