#!/usr/bin/env bash
# pip_install.sh ENVIRONMENT WHAT ABOUT [CONSTRAINTS]: makes the environment where it is missing and installs WHAT,
# editable, within a file of constraints if one is named, with a word before, every EVERY seconds while pip says nothing,
# and after.
set -euo pipefail
environment=$1 what=$2 about=$3 constraints=${4:-}
test -x "$environment/bin/python" || "${PYTHON:-python3}" -m venv "$environment"
echo "installing $about into $environment"
while sleep "${EVERY:-10}" >/dev/null 2>&1; do echo "still installing, $SECONDS s"; done &
trap 'kill $!' EXIT
"$environment/bin/python" -m pip install -q --disable-pip-version-check ${constraints:+-c "$constraints"} -e "$what"
"$environment/bin/python" -c 'from attendant import kernels; print(kernels.why_missing() or f"kernels: {kernels.path_name()}")'
echo "installed in $SECONDS s"
