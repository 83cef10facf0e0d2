// As much of onnxruntime's sessions as graph.cc calls. A run of the one graph there is calls `Sessions::step`.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fake_onnxruntime.h"

struct BoundTensor {
  void* data;
  size_t bytes;
  std::vector<int64_t> shape;
  int type;
};

using Bound = std::map<std::string, BoundTensor>;

struct Sessions {
  static inline int alive = 0;       // of all that onnxruntime was asked to make and is to be given back
  static inline std::string refuse;  // what fails: "CreateSession", "BindInput", "RunWithBinding"; empty: nothing
  static inline std::map<std::string, int64_t> weights;  // of the session that was made last: bytes
  static inline int threads = 0;                         // likewise
  static inline std::function<void(const Bound&)> step;
};

// Makes the library take the fake for onnxruntime.
void register_fake();
void put_sessions(OrtApi& api);
