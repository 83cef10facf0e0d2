// A graph on onnxruntime that compiled code runs by itself, without Python's lock: a session, and bindings of its
// inputs and outputs to memory of the caller's, which stays where it is. Called by ctypes (kernels/graph.py).
//
// No exception leaves these functions: null, or a result below 0, means that `attendant_problem` has a sentence.
#pragma once
#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

struct AttendantTensor {
  const char* name;  // of the graph's input, output or weight
  void* data;
  int64_t bytes;
  int32_t type;  // as onnxruntime numbers them: ort::Type
  int32_t rank;
  int64_t shape[6];
};

struct AttendantGraph;
struct AttendantBinding;

// The graph of a file, whose operators run on up to `threads` threads. Its weights are given: they are not copied, and
// must outlive it. Some session must have registered the operators before, which tells where onnxruntime is.
AttendantGraph* attendant_graph_load(const char* path, int32_t threads, const AttendantTensor* weights, int64_t count);
void attendant_graph_free(AttendantGraph*);
// The first `inputs` tensors are the graph's inputs, the others its outputs. The graph must outlive the binding.
AttendantBinding* attendant_graph_bind(AttendantGraph*, const AttendantTensor*, int64_t inputs, int64_t count);
void attendant_binding_free(AttendantBinding*);
// Runs the graph once. Returns 0, or -1.
int32_t attendant_binding_run(AttendantBinding*);
// Why the last call of this thread failed.
const char* attendant_problem();
}
#pragma GCC visibility pop

namespace attendant {

void run(AttendantBinding&);              // throws what onnxruntime says
void note_problem(const char*) noexcept;  // for attendant_problem

}  // namespace attendant
