#include "operator.h"

namespace attendant {

namespace {

void check(const OrtApi* api, OrtStatus* status, const char* operation) {
  if (!status) return;
  const std::string why = api->message(status);
  api->release(ort::Place::ReleaseStatus, status);
  fail("onnxruntime refused to ", operation, ": ", why);
}

// True if the call worked.
bool worked(const OrtApi* api, OrtStatus* status) {
  if (status) api->release(ort::Place::ReleaseStatus, status);
  return !status;
}

Tensor describe(const OrtApi* api, const OrtValue* value) {
  using ort::Place;
  Tensor tensor;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api, api->call(Place::GetTensorTypeAndShape, value, &info), "describe a tensor");
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> owned(
      info,
      reinterpret_cast<void (*)(OrtTensorTypeAndShapeInfo*)>(api->places[int(Place::ReleaseTensorTypeAndShapeInfo)]));
  const OrtTensorTypeAndShapeInfo* known = info;
  size_t rank = 0;
  check(api, api->call(Place::GetTensorElementType, known, &tensor.type), "tell a tensor's type");
  check(api, api->call(Place::GetDimensionsCount, known, &rank), "count a tensor's dimensions");
  tensor.rank = int(rank);
  if (rank <= tensor.shape.size())
    check(api, api->call(Place::GetDimensions, known, tensor.shape.data(), rank), "tell a tensor's shape");
  check(api, api->call(Place::GetTensorMutableData, value, &tensor.data), "give a tensor's memory");
  return tensor;
}

const char* name_of(ort::Type type) {
  switch (type) {
    case ort::Type::f32:
      return "float32";
    case ort::Type::i8:
      return "int8";
    case ort::Type::i32:
      return "int32";
    case ort::Type::i64:
      return "int64";
    default:
      return "another type";
  }
}

void check_tensor(const char* name, const char* what, const Tensor& tensor, ort::Type type, const int64_t* shape,
                  int rank) {
  if (tensor.type != type) fail("attendant.", name, ": ", what, " is ", name_of(tensor.type), ", not ", name_of(type));
  bool fits = tensor.rank == rank;
  for (int i = 0; fits && i < rank; i++) fits = shape[i] < 0 || shape[i] == tensor.shape[size_t(i)];
  if (!fits)
    fail("attendant.", name, ": ", what, " has the shape ", text_of(tensor.shape.data(), tensor.rank), ", not ",
         text_of(shape, rank));
}

}  // namespace

int64_t Tensor::count() const {
  int64_t product = 1;
  for (int i = 0; i < rank; i++) product *= shape[size_t(i)];
  return product;
}

std::string text_of(const int64_t* shape, int rank) {
  std::string text = "(";
  for (int i = 0; i < rank && i < 5; i++)
    text += (i ? ", " : "") + (shape[i] < 0 ? std::string("any") : std::to_string(shape[i]));
  return text + (rank > 5 ? ", ...)" : ")");
}

float Definition::number(const char* attribute) const {
  float value = 0;
  require(worked(api_, api_->call(ort::Place::KernelInfoGetAttribute_float, info_, attribute, &value)),
          "the attribute ", attribute, " (a float) is missing");
  return value;
}

int64_t Definition::integer(const char* attribute) const {
  int64_t value = 0;
  require(worked(api_, api_->call(ort::Place::KernelInfoGetAttribute_int64, info_, attribute, &value)),
          "the attribute ", attribute, " (an integer) is missing");
  return value;
}

int64_t Definition::integer_or(const char* attribute, int64_t otherwise) const {
  int64_t value = 0;
  const bool given = worked(api_, api_->call(ort::Place::KernelInfoGetAttribute_int64, info_, attribute, &value));
  return given ? value : otherwise;
}

bool Definition::flag(const char* attribute) const {
  const int64_t value = integer(attribute);
  require(value == 0 || value == 1, "the attribute ", attribute, " is ", value, ", not 0 or 1");
  return value == 1;
}

std::string Definition::word(const char* attribute) const {
  std::string value(64, '\0');
  size_t size = value.size();
  require(worked(api_, api_->call(ort::Place::KernelInfoGetAttribute_string, info_, attribute, &value[0], &size)),
          "the attribute ", attribute, " (a word) is missing");
  return value.c_str();
}

Tensor Definition::constant(size_t input, const char* what, ort::Type type, std::vector<int64_t> shape) const {
  int constant = 0;
  const OrtValue* value = nullptr;
  const bool known =
      worked(api_, api_->call(ort::Place::KernelInfoGetConstantInput_tensor, info_, input, &constant, &value));
  require(known && constant && value, what, " (input ", input, ") must be an initializer of the graph");
  const Tensor tensor = describe(api_, value);
  check_tensor(name_, what, tensor, type, shape.data(), int(shape.size()));
  return tensor;
}

Tensor Run::input(size_t place, const char* what, ort::Type type, std::initializer_list<int64_t> shape) const {
  const OrtValue* value = nullptr;
  const OrtKernelContext* context = context_;
  check(api_, api_->call(ort::Place::KernelContext_GetInput, context, place, &value), "give an input");
  require(value, what, " (input ", place, ") is missing");
  const Tensor tensor = describe(api_, value);
  check_tensor(name_, what, tensor, type, shape.begin(), int(shape.size()));
  return tensor;
}

void* Run::output_memory(size_t place, const int64_t* shape, size_t rank) const {
  OrtValue* value = nullptr;
  check(api_, api_->call(ort::Place::KernelContext_GetOutput, context_, place, shape, rank, &value), "make an output");
  if (!value) return nullptr;
  void* memory = nullptr;
  check(api_, api_->call(ort::Place::GetTensorMutableData, value, &memory), "give an output's memory");
  return memory;
}

}  // namespace attendant
