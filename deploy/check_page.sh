#!/usr/bin/env bash
# Checks the types of the page's JavaScript (service/http/page/jsconfig.json) with TypeScript, which it installs into
# .venv/node. Without npm the check is left out; in CI (CI=true) npm is installed, or it fails.
set -euo pipefail
cd "$(dirname "$0")/.."
version=7.0.2
if ! deploy/need.sh npm npm; then
  echo "The types of the page's JavaScript are not checked."
  [ "${CI:-}" != true ]
  exit
fi
tsc=.venv/node/$version/node_modules/.bin/tsc
[ -x "$tsc" ] || npm install --prefix ".venv/node/$version" --no-audit --no-fund --loglevel error "typescript@$version"
"$tsc" -p service/http/page/jsconfig.json
