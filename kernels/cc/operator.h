// What every operator is made of: its attributes and constant inputs when it is created, its inputs and outputs when it
// runs, and the path and threads that it computes with.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "errors.h"
#include "onnxruntime.h"
#include "path.h"
#include "scratch.h"
#include "team.h"

namespace attendant {

// Where a kernel computes: fixed when its session is created.
struct Machine {
  const Path* path;
  int threads;
};

// A tensor of up to five dimensions; data is null if the input or output is left out.
struct Tensor {
  void* data = nullptr;
  ort::Type type = ort::Type::any;
  int rank = 0;
  std::array<int64_t, 5> shape{};

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t count() const;
};

std::string text_of(const int64_t* shape, int rank);

// A node's attributes and constant inputs. Errors name the operator.
class Definition {
 public:
  Definition(const OrtApi* api, const OrtKernelInfo* info, const char* name, Machine machine)
      : machine(machine), api_(api), info_(info), name_(name) {}

  float number(const char* attribute) const;
  int64_t integer(const char* attribute) const;
  int64_t integer_or(const char* attribute, int64_t otherwise) const;  // where the node has no such attribute
  bool flag(const char* attribute) const;
  std::string word(const char* attribute) const;
  // A constant input (an initializer) of this type and shape; -1 in the shape takes any size.
  Tensor constant(size_t input, const char* what, ort::Type type, std::vector<int64_t> shape) const;
  template <class... A>
  void require(bool holds, const A&... otherwise) const {
    if (!holds) fail("attendant.", name_, ": ", otherwise...);
  }

  const Machine machine;

 private:
  const OrtApi* api_;
  const OrtKernelInfo* info_;
  const char* name_;
};

// One run of a kernel: inputs by their place, checked; outputs, made in their shape.
class Run {
 public:
  Run(const OrtApi* api, OrtKernelContext* context, const char* name) : api_(api), context_(context), name_(name) {}

  // An input of this type and shape; -1 in the shape takes any size.
  Tensor input(size_t place, const char* what, ort::Type type, std::initializer_list<int64_t> shape) const;
  // Null if the graph does not use the output.
  template <class T>
  T* output(size_t place, std::initializer_list<int64_t> shape) const {
    return static_cast<T*>(output_memory(place, shape.begin(), shape.size()));
  }
  template <class... A>
  void require(bool holds, const A&... otherwise) const {
    if (!holds) fail("attendant.", name_, ": ", otherwise...);
  }
  template <class B>
  void team(int threads, B&& body) const {
    run_team(api_, context_, threads, body);
  }

 private:
  void* output_memory(size_t place, const int64_t* shape, size_t rank) const;

  const OrtApi* api_;
  OrtKernelContext* context_;
  const char* name_;
};

struct Operator {
  virtual ~Operator() = default;
  virtual void run(const Run& run) const = 0;
};

// How an operator is declared to onnxruntime. Types that depend on the precision are in a variadic rest at the end.
struct Declaration {
  const char* name;
  std::vector<ort::Type> inputs;
  bool more_inputs;
  std::vector<ort::Type> outputs;
  bool more_outputs;
  std::unique_ptr<Operator> (*create)(const Definition&);
};

Declaration embed_source(), embed_target(), encoder_layer(), cross_keys_values(), decoder_layer(), vocabulary();

}  // namespace attendant
