#!/usr/bin/env bash
# test_versions.sh lowest|newest TESTS: runs tests with the lowest versions of the runtime dependencies that pyproject.toml
# admits, or with the newest that pip finds, in .venv/lowest or .venv/newest. Torch is not installed there.
set -euo pipefail
cd "$(dirname "$0")/.."
which=$1 environment=.venv/$1
shift
# Installed again when pyproject.toml has changed, and the newest versions once a day.
if [ ! "$environment/ready" -nt pyproject.toml ] || { [ "$which" = newest ] && [ -n "$(find "$environment/ready" -mtime +0)" ]; }; then
  rm -rf "$environment"
  "${PYTHON:-python3}" -m venv "$environment"
  touch "$environment/constraints.txt"
  [ "$which" = newest ] || "$environment/bin/python" deploy/lowest_versions.py >"$environment/constraints.txt"
  echo "installing the $which versions of what serving needs (0.3 GB) into $environment"
  "$environment/bin/python" -m pip install -q --disable-pip-version-check --constraint "$environment/constraints.txt" \
    --editable . httpx hypothesis pytest pytest-timeout pytest-xdist pyyaml
  touch "$environment/ready"
fi
if "$environment/bin/python" -c 'import torch' 2>/dev/null; then
  echo "$environment has torch, which serving must do without." >&2
  exit 1
fi
echo "$which versions:" $("$environment/bin/python" -m pip list --format=freeze | grep -iE '^(fastapi|httptools|numpy|onnxruntime|prometheus.client|pydantic|starlette|tokenizers|tqdm|uvicorn|uvloop)==')
# Old versions warn of newer ones that they use: that is no error here.
"$environment/bin/python" -m pytest -n auto --maxprocesses 4 --disable-warnings -o filterwarnings=default "$@"
