// The operators, as a session is told of them.
#pragma once
#include "onnxruntime.h"

namespace attendant {

const OrtApi* known_api();  // of the onnxruntime that has registered the operators last; null: none has
// Make the operators known to a session that is created with these options; each runs on up to `threads` threads.
void add_operators(const OrtApi*, OrtSessionOptions*, int threads);
// Throws what a status says, if it is one.
void check(const OrtApi*, OrtStatus*);

}  // namespace attendant
