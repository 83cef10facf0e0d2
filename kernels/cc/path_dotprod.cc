// ARM64 with dotprod (ARMv8.2 and later): sdot.
#include "dot_neon.h"
#include "path_table.h"

const attendant::Path attendant::path_dotprod = make_path<DotNeon, 6>("dotprod");
