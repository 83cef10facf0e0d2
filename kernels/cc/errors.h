// Errors inside the library are exceptions that hold a sentence; register.cc turns them into a status of onnxruntime.
#pragma once
#include <sstream>
#include <stdexcept>

namespace attendant {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws the arguments, written one after the other, as one sentence.
template <class... A>
[[noreturn]] void fail(const A&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(text.str());
}

template <class... A>
void require(bool holds, const A&... otherwise) {
  if (!holds) fail(otherwise...);
}

}  // namespace attendant
