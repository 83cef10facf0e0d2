// Threads that work on one operator: one parallel region of onnxruntime's pool, with phases inside.
//
// The first task of the region that starts is the leader: it runs the operator's body. The others help: they take
// chunks of the phase that the leader has open, until the leader ends the region. The leader takes chunks too and waits
// only for chunks that a helper has already begun, never for a helper that has not started: a busy pool makes an
// operator slower but cannot block it.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <type_traits>

#include "onnxruntime.h"

namespace attendant {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

class Team {
 public:
  explicit Team(int size) : size_(size) {}

  int size() const { return size_; }

  // Runs f(0) ... f(count - 1), each once, on any thread of the team, and returns when all are done. Called by the
  // leader only. Short chunks are not offered to a team in which no helper has arrived yet.
  template <class F>
  void parallel(int count, F&& f, bool long_chunks = false) {
    if (count <= 1 || size_ <= 1 || (!long_chunks && helpers_.load(std::memory_order_relaxed) == 0)) {
      for (int i = 0; i < count; i++) f(i);
      return;
    }
    using Function = std::remove_reference_t<F>;
    function_.store([](void* f, int i) { (*static_cast<Function*>(f))(i); }, std::memory_order_relaxed);
    argument_.store(const_cast<void*>(static_cast<const void*>(&f)), std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    state_.store(++phase_ << 40 | uint64_t(count) << 20, std::memory_order_release);
    while (take_chunk()) {
    }
    while (done_.load(std::memory_order_acquire) < count) relax();
    if (failed_.load(std::memory_order_relaxed)) std::rethrow_exception(error_);
  }

  // What each task of the region runs. The body's exceptions end up in `error`.
  template <class B>
  void task(B& body) {
    if (!led_.exchange(true)) {
      try {
        body(*this);
      } catch (...) {
        keep_error();
      }
      state_.store(END, std::memory_order_release);
      return;
    }
    if (state_.load(std::memory_order_acquire) == END) return;
    helpers_.fetch_add(1, std::memory_order_relaxed);
    while (state_.load(std::memory_order_relaxed) != END)
      if (!take_chunk()) relax();
  }

  std::exception_ptr error() const { return failed_.load(std::memory_order_acquire) ? error_ : nullptr; }

 private:
  static constexpr uint64_t END = ~uint64_t(0), COUNT = (1 << 20) - 1;

  // Runs the next chunk of the open phase; false if there is none. A chunk is taken by raising the last 20 bits of the
  // state: if the leader has opened another phase in the meantime, the exchange fails and nothing that was read is
  // used.
  bool take_chunk() {
    while (true) {
      uint64_t state = state_.load(std::memory_order_acquire);
      if (state == END || (state & COUNT) >= ((state >> 20) & COUNT)) return false;
      auto function = function_.load(std::memory_order_relaxed);
      auto argument = argument_.load(std::memory_order_relaxed);
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
      try {
        function(argument, int(state & COUNT));
      } catch (...) {
        keep_error();
      }
      done_.fetch_add(1, std::memory_order_release);
      return true;
    }
  }

  void keep_error() {
    if (erring_.exchange(true)) return;  // the first one counts
    error_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }

  const int size_;
  uint64_t phase_ = 0;
  alignas(64) std::atomic<uint64_t> state_{0};  // phase << 40 | number of chunks << 20 | next chunk
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<bool> led_{false};
  std::atomic<int> helpers_{0};
  std::atomic<bool> erring_{false}, failed_{false};
  std::atomic<void (*)(void*, int)> function_{nullptr};
  std::atomic<void*> argument_{nullptr};
  std::exception_ptr error_;
};

// Runs body(team) on a team of up to `threads` threads of the pool that runs the operator.
template <class B>
void run_team(const OrtApi* api, const OrtKernelContext* context, int threads, B&& body) {
  if (threads <= 1) {
    Team alone(1);
    body(alone);
    return;
  }
  Team team(threads);
  struct Both {
    Team* team;
    std::remove_reference_t<B>* body;
  } both{&team, &body};
  void (*start)(void*, size_t) = [](void* p, size_t) {
    auto* both = static_cast<Both*>(p);
    both->team->task(*both->body);
  };
  OrtStatus* status = api->call(ort::Place::KernelContext_ParallelFor, context, start, size_t(threads), size_t(0),
                                static_cast<void*>(&both));
  if (status) api->release(ort::Place::ReleaseStatus, status);
  if (auto error = team.error()) std::rethrow_exception(error);
}

}  // namespace attendant
