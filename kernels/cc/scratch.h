// Scratch memory of a thread: taken in a Frame, given back when the frame ends, and freed with the thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace attendant {

class Scratch {
 public:
  static constexpr size_t KEPT = size_t(32) << 20;  // bytes that a thread keeps between operators; more is freed

  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { drop(0); }

  static Scratch& of_thread() {
    static thread_local Scratch scratch;
    return scratch;
  }

 private:
  friend class Frame;
  struct Block {
    char* memory;
    size_t size, used;
  };

  void* take(size_t bytes) {
    bytes = (bytes + 63) & ~size_t(63);
    if (blocks_.empty() || blocks_.back().size - blocks_.back().used < bytes) add(bytes);
    Block& block = blocks_.back();
    void* memory = block.memory + block.used;
    block.used += bytes;
    return memory;
  }

  void add(size_t bytes) {
    size_t size = bytes < (size_t(64) << 10) ? size_t(64) << 10 : bytes;
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back({static_cast<char*>(::operator new(size, std::align_val_t(64))), size, 0});
    size_t held = 0;
    for (const Block& block : blocks_) held += block.size;
    if (held > most_) most_ = held;
  }

  void drop(size_t keep) {
    while (blocks_.size() > keep) {
      ::operator delete(blocks_.back().memory, std::align_val_t(64));
      blocks_.pop_back();
    }
  }

  // After the outermost frame: one block that would have held everything, unless that is more than may be kept.
  void tidy() {
    size_t most = most_ <= KEPT ? most_ : 0;
    if (blocks_.size() == 1 && blocks_[0].size >= most_ && most) return;
    drop(0);
    most_ = 0;
    if (!most) return;
    try {
      add(most);
    } catch (const std::bad_alloc&) {  // the next operator tries again
    }
  }

  std::vector<Block> blocks_;
  size_t most_ = 0;  // bytes held at once since the last tidying
  int depth_ = 0;
};

class Frame {
 public:
  Frame() : scratch_(Scratch::of_thread()), block_(scratch_.blocks_.size()) {
    if (block_) used_ = scratch_.blocks_.back().used;
    scratch_.depth_++;
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  ~Frame() {
    if (--scratch_.depth_ == 0) {
      scratch_.tidy();
      if (!scratch_.blocks_.empty()) scratch_.blocks_.back().used = 0;
      return;
    }
    scratch_.drop(block_);
    if (block_) scratch_.blocks_.back().used = used_;
  }

  // Room for `count` values, aligned to 64 bytes, not cleared. Throws std::bad_alloc.
  template <class T>
  T* take(size_t count) {
    if (count > SIZE_MAX / 2 / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(scratch_.take(count * sizeof(T)));
  }

 private:
  Scratch& scratch_;
  size_t block_, used_ = 0;
};

}  // namespace attendant
