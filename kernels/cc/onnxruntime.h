// The part of onnxruntime's C interface that is used here, without its headers: functions by their place in
// the table that `GetApi` returns. The table only grows at its end; these places are those of onnxruntime_c_api.h from
// 1.20 to 1.31.
#pragma once
#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtValue;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtEnv;
struct OrtSession;
struct OrtSessionOptions;
struct OrtRunOptions;
struct OrtIoBinding;
struct OrtMemoryInfo;
struct OrtCustomOpDomain;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;

namespace ort {

constexpr uint32_t VERSION = 20;  // of onnxruntime 1.20, the oldest that may load this library
constexpr int PLACES = 285;       // in the table of version 20
constexpr int FAIL = 1, INVALID_ARGUMENT = 2;

enum class Type : int { any = 0, f32 = 1, i8 = 3, i32 = 6, i64 = 7 };
enum class Presence : int { required = 0, optional = 1, variadic = 2 };

enum class Place : int {
  CreateStatus = 0,
  GetErrorMessage = 2,
  CreateEnv = 3,
  CreateSession = 7,
  CreateSessionOptions = 10,
  DisableMemPattern = 17,
  SetSessionLogSeverityLevel = 22,
  SetIntraOpNumThreads = 24,
  SetInterOpNumThreads = 25,
  CreateCustomOpDomain = 26,
  CustomOpDomain_Add = 27,
  AddCustomOpDomain = 28,
  CreateTensorWithDataAsOrtValue = 49,
  GetTensorMutableData = 51,
  GetTensorElementType = 60,
  GetDimensionsCount = 61,
  GetDimensions = 62,
  GetTensorTypeAndShape = 65,
  CreateCpuMemoryInfo = 69,
  KernelInfoGetAttribute_float = 85,
  KernelInfoGetAttribute_int64 = 86,
  KernelInfoGetAttribute_string = 87,
  KernelContext_GetInputCount = 88,
  KernelContext_GetOutputCount = 89,
  KernelContext_GetInput = 90,
  KernelContext_GetOutput = 91,
  ReleaseStatus = 93,
  ReleaseMemoryInfo = 94,
  ReleaseSession = 95,
  ReleaseValue = 96,
  ReleaseTensorTypeAndShapeInfo = 99,
  ReleaseSessionOptions = 100,
  AddSessionConfigEntry = 130,
  RunWithBinding = 133,
  CreateIoBinding = 134,
  ReleaseIoBinding = 135,
  BindInput = 136,
  BindOutput = 137,
  AddInitializer = 150,
  KernelInfo_GetInputCount = 230,
  HasSessionConfigEntry = 237,
  GetSessionConfigEntry = 238,
  KernelInfoGetConstantInput_tensor = 249,
  KernelContext_ParallelFor = 274,
};

}  // namespace ort

struct OrtApi {
  void* places[ort::PLACES];

  // Calls a function that returns a status: null, or an error that the caller owns.
  template <class... A>
  OrtStatus* call(ort::Place place, A... a) const {
    return reinterpret_cast<OrtStatus* (*)(A...)>(places[int(place)])(a...);
  }
  template <class... A>
  void release(ort::Place place, A... a) const {
    reinterpret_cast<void (*)(A...)>(places[int(place)])(a...);
  }
  const char* message(const OrtStatus* status) const {
    return reinterpret_cast<const char* (*)(const OrtStatus*)>(places[int(ort::Place::GetErrorMessage)])(status);
  }
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct OrtCustomOp {  // as of version 20
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ort::Type (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ort::Type (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  ort::Presence (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  ort::Presence (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};
