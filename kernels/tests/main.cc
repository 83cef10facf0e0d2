#include <cstring>

#include "test.h"

int failures = 0;

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

const std::vector<const attendant::Path*>& paths() {
  static const std::vector<const attendant::Path*> found = [] {
    std::vector<const attendant::Path*> list;
    std::string names = attendant::supported_paths();
    for (size_t at = 0; at < names.size();) {
      const size_t end = names.find(' ', at) == std::string::npos ? names.size() : names.find(' ', at);
      list.push_back(&attendant::choose_path(names.substr(at, end - at).c_str()));
      at = end + 1;
    }
#ifdef AVXVNNI_BY_AVX512
    if (names.find("avx512vnni") != std::string::npos) list.push_back(&attendant::path_avxvnni);
#endif
    return list;
  }();
  return found;
}

int main(int count, char** arguments) {
  for (const auto* path : paths()) std::printf("path %s\n", path->name);
  for (const Test& test : tests()) {
    if (count > 1 && !std::strstr(test.name, arguments[1])) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
  }
  std::printf(failures ? "%d failed\n" : "all passed\n", failures);
  return failures ? 1 : 0;
}
