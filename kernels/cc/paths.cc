// Which paths this machine can run, and the choice of one.
#include <cstring>
#include <string>

#include "errors.h"
#include "path.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace attendant {

namespace {

struct Choice {
  const Path* path;
  bool supported;
};

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

bool has_avxvnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 4));
}

const Choice* choices(int* count) {
  static const Choice all[] = {{&path_avx512vnni, has_avx512vnni()},
                               {&path_avxvnni, has_avxvnni()},
                               {&path_avx2, has_avx2()},
                               {&path_portable, true}};
  *count = 4;
  return all;
}
#elif defined(__aarch64__)
const Choice* choices(int* count) {
  constexpr unsigned long DOTPROD = 1ul << 20, I8MM = 1ul << 13;  // of AT_HWCAP and AT_HWCAP2
  static const Choice all[] = {{&path_i8mm, (getauxval(AT_HWCAP2) & I8MM) && (getauxval(AT_HWCAP) & DOTPROD)},
                               {&path_dotprod, (getauxval(AT_HWCAP) & DOTPROD) != 0},
                               {&path_portable, true}};
  *count = 3;
  return all;
}
#else
const Choice* choices(int* count) {
  static const Choice all[] = {{&path_portable, true}};
  *count = 1;
  return all;
}
#endif

}  // namespace

const char* supported_paths() {
  static const std::string names = [] {
    std::string text;
    int count;
    const Choice* all = choices(&count);
    for (int i = 0; i < count; i++)
      if (all[i].supported) text += (text.empty() ? "" : " ") + std::string(all[i].path->name);
    return text;
  }();
  return names.c_str();
}

const Path& choose_path(const char* name) {
  int count;
  const Choice* all = choices(&count);
  for (int i = 0; i < count; i++)
    if (all[i].supported && (!*name || !std::strcmp(name, all[i].path->name))) return *all[i].path;
  fail("ATTENDANT_KERNELS is ", name, ", which this machine does not have: it has ", supported_paths(), ", and off.");
}

}  // namespace attendant
