#include "fake_onnxruntime.h"

#include <algorithm>

#include "fake_session.h"

namespace {

size_t size_of(ort::Type type) { return type == ort::Type::i8 ? 1 : type == ort::Type::i64 ? 8 : 4; }

const Node& node(const void* p) { return *static_cast<const Node*>(p); }

OrtStatus* create_status(int, const char* why) { return new OrtStatus{why}; }
const char* message(const OrtStatus* status) { return status->why.c_str(); }
void release_status(OrtStatus* status) { delete status; }

OrtStatus* describe(const OrtValue* value, OrtValue** info) {
  *info = new OrtValue{value->type, value->shape, {}};
  return nullptr;
}
void release_description(OrtValue* info) { delete info; }
OrtStatus* type_of(const OrtValue* info, ort::Type* type) {
  *type = info->type;
  return nullptr;
}
OrtStatus* rank_of(const OrtValue* info, size_t* rank) {
  *rank = info->shape.size();
  return nullptr;
}
OrtStatus* shape_of(const OrtValue* info, int64_t* shape, size_t rank) {
  std::copy_n(info->shape.begin(), rank, shape);
  return nullptr;
}
OrtStatus* memory_of(OrtValue* value, void** memory) {
  *memory = value->bytes.data();
  return nullptr;
}

template <class T, class M>
OrtStatus* found(const M& map, const char* name, T* out) {
  const auto at = map.find(name);
  if (at == map.end()) return new OrtStatus{"no such attribute"};
  *out = at->second;
  return nullptr;
}
OrtStatus* float_of(const void* info, const char* name, float* out) { return found(node(info).floats, name, out); }
OrtStatus* integer_of(const void* info, const char* name, int64_t* out) {
  return found(node(info).integers, name, out);
}
OrtStatus* word_of(const void* info, const char* name, char* out, size_t* size) {
  std::string word;
  if (OrtStatus* status = found(node(info).words, name, &word)) return status;
  if (word.size() + 1 > *size) return new OrtStatus{"too long"};
  std::memcpy(out, word.c_str(), word.size() + 1);
  return nullptr;
}
OrtStatus* constant_of(const void* info, size_t i, int* is, const OrtValue** value) {
  if (i >= node(info).inputs.size()) return new OrtStatus{"no such input"};
  *is = node(info).constant[i];
  *value = &node(info).inputs[i];
  return nullptr;
}
OrtStatus* input_of(const void* context, size_t i, const OrtValue** value) {
  if (i >= node(context).inputs.size()) return new OrtStatus{"no such input"};
  *value = &node(context).inputs[i];
  return nullptr;
}
OrtStatus* output_of(void* context, size_t i, const int64_t* shape, size_t rank, OrtValue** value) {
  Node& of = *static_cast<Node*>(context);
  if (of.aliases[i] >= 0) {
    *value = &of.inputs[size_t(of.aliases[i])];
    return nullptr;
  }
  OrtValue& output = of.outputs[i];
  output.shape.assign(shape, shape + rank);
  size_t count = 1;
  for (size_t axis = 0; axis < rank; axis++) count *= size_t(shape[axis]);
  output.bytes.assign(count * size_of(output.type), 0x55);
  *value = &output;
  return nullptr;
}

OrtStatus* parallel_for(const void* context, void (*f)(void*, size_t), size_t count, size_t, void* argument) {
  std::vector<std::thread> threads;
  const bool late = node(context).late;
  for (size_t i = 1; i < count; i++)
    threads.emplace_back([=] {
      if (late) std::this_thread::sleep_for(std::chrono::milliseconds(20 * i));
      f(argument, i);
    });
  f(argument, 0);
  for (std::thread& thread : threads) thread.join();
  return nullptr;
}

template <class F>
void put(OrtApi& api, ort::Place place, F* function) {
  api.places[int(place)] = reinterpret_cast<void*>(function);
}

}  // namespace

const OrtApi* Fake::table() {
  static const OrtApi made = [] {
    using ort::Place;
    OrtApi api{};
    put(api, Place::CreateStatus, create_status);
    put(api, Place::GetErrorMessage, message);
    put(api, Place::ReleaseStatus, release_status);
    put(api, Place::GetTensorTypeAndShape, describe);
    put(api, Place::ReleaseTensorTypeAndShapeInfo, release_description);
    put(api, Place::GetTensorElementType, type_of);
    put(api, Place::GetDimensionsCount, rank_of);
    put(api, Place::GetDimensions, shape_of);
    put(api, Place::GetTensorMutableData, memory_of);
    put(api, Place::KernelInfoGetAttribute_float, float_of);
    put(api, Place::KernelInfoGetAttribute_int64, integer_of);
    put(api, Place::KernelInfoGetAttribute_string, word_of);
    put(api, Place::KernelInfoGetConstantInput_tensor, constant_of);
    put(api, Place::KernelContext_GetInput, input_of);
    put(api, Place::KernelContext_GetOutput, output_of);
    put(api, Place::KernelContext_ParallelFor, parallel_for);
    put_sessions(api);
    return api;
  }();
  return &made;
}
