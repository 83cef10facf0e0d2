// The least that a test needs: CHECK counts, TEST registers, main (main.cc) runs all and tells.
#pragma once
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "path.h"

struct Test {
  const char* name;
  void (*run)();
};

std::vector<Test>& tests();
extern int failures;

#define TEST(name)                                                           \
  static void name();                                                        \
  static const bool name##_known = (tests().push_back({#name, name}), true); \
  static void name()

#define CHECK(...)                                                                                               \
  do {                                                                                                           \
    if (!(__VA_ARGS__) && failures++ < 20) std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
  } while (0)

// Every path that this machine can run; path_avxvnni also by its twin of AVX512VL, where the test is compiled so.
const std::vector<const attendant::Path*>& paths();

// Random numbers, the same in every run.
struct Random {
  std::mt19937 engine;
  explicit Random(unsigned seed) : engine(seed) {}
  int between(int low, int high) { return int(engine() % unsigned(high - low + 1)) + low; }
  std::vector<float> floats(size_t count, float spread = 1) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> out(count);
    for (float& value : out) value = normal(engine);
    return out;
  }
  std::vector<int8_t> bytes(size_t count, int most) {
    std::vector<int8_t> out(count);
    for (int8_t& value : out) value = int8_t(between(-most, most));
    return out;
  }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || !__builtin_memcmp(a.data(), b.data(), a.size() * sizeof(float)));
}
