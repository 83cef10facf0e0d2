// As much of onnxruntime as an operator calls: tensors in vectors, attributes in a map, threads made for each region.
#pragma once
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "onnxruntime.h"

struct OrtStatus {
  std::string why;
};

struct OrtValue {
  ort::Type type = ort::Type::any;
  std::vector<int64_t> shape;
  std::vector<char> bytes;

  template <class T>
  static OrtValue of(ort::Type type, std::vector<int64_t> shape, const std::vector<T>& values) {
    OrtValue value{type, std::move(shape), std::vector<char>(values.size() * sizeof(T))};
    if (!values.empty()) std::memcpy(value.bytes.data(), values.data(), value.bytes.size());
    return value;
  }
  template <class T>
  std::vector<T> values() const {
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
};

// One node: a kernel's info and its context are both the same object here.
struct Node {
  std::vector<OrtValue> inputs;
  std::vector<bool> constant;
  std::map<std::string, int64_t> integers;
  std::map<std::string, float> floats;
  std::map<std::string, std::string> words;
  std::vector<OrtValue> outputs;
  std::vector<int> aliases;  // of outputs: the input whose memory it takes, or -1
  bool late = false;         // helpers start when the leader has nearly ended
};

struct Fake : Node {
  const OrtApi* api() const { return table(); }
  const OrtKernelContext* context() const {
    return reinterpret_cast<const OrtKernelContext*>(static_cast<const Node*>(this));
  }
  OrtKernelContext* context() { return reinterpret_cast<OrtKernelContext*>(static_cast<Node*>(this)); }
  const OrtKernelInfo* info() const { return reinterpret_cast<const OrtKernelInfo*>(static_cast<const Node*>(this)); }

  static const OrtApi* table();
};
