#!/usr/bin/env bash
# The service with curl: an answer, a stream, the log-probability of a given answer, an alignment.
set -euo pipefail
url=${1:-http://127.0.0.1:8000}

ask() { curl --silent --show-error --no-buffer --fail-with-body "$url$1" --data "$2"; }
field() { python3 -c "import json, sys; print(json.load(sys.stdin)$1)"; } # or jq

ask /v1/generate '{"inputs": "attendant"}' | field '["outputs"][0]["hypotheses"][0]["text"]'
ask /v1/generate '{"inputs": "cat", "stream": true}' | grep --only-matching '^event: .*'
ask /v1/score '{"source": "cat", "target": "K AE1 T"}' | field '["tokens"][1]["token"]'
ask /v1/explain '{"source": "cat"}' | field '["alignment"]["pairs"]'
