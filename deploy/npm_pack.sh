#!/usr/bin/env bash
# npm_pack.sh DIRECTORY PACKAGE@VERSION...: packages of npm in DIRECTORY/node_modules, as they are published, without what
# they depend on. Without npm nothing is done; in CI (CI=true) npm is installed, or it fails.
set -euo pipefail
directory=$1
shift
if ! "$(dirname "$0")/need.sh" npm npm; then
  echo "Clients from npm are not tested."
  [ "${CI:-}" != true ]
  exit
fi
for package in "$@"; do
  at="$directory/node_modules/${package%@*}"
  rm -rf "$at" && mkdir -p "$at"
  npm pack --silent --pack-destination "$directory" "$package" >/dev/null
  tar -xzf "$directory/${package%@*}-${package##*@}.tgz" -C "$at" --strip-components 1
done
touch "$directory"
