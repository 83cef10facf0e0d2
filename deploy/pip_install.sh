#!/usr/bin/env bash
# pip_install.sh ENVIRONMENT WHAT ABOUT: makes the environment where it is missing and installs WHAT, editable, with a
# word before, every EVERY seconds while pip says nothing, and after.
set -euo pipefail
environment=$1 what=$2 about=$3
test -x "$environment/bin/python" || "${PYTHON:-python3}" -m venv "$environment"
echo "installing $about into $environment"
while sleep "${EVERY:-10}" >/dev/null 2>&1; do echo "still installing, $SECONDS s"; done &
trap 'kill $!' EXIT
"$environment/bin/python" -m pip install -q --disable-pip-version-check -e "$what"
echo "installed in $SECONDS s"
