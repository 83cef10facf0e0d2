#!/usr/bin/env bash
# Prometheus' and Compose's own checks of what is in this directory. As root on Debian it installs what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

need() { # a program, the Debian package that has it
  command -v "$1" >/dev/null && return
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "deploy/check.sh: $1 is missing; install it (Debian: apt-get install $2)." >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
}

compose() {
  if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi
}

need promtool prometheus
docker compose version >/dev/null 2>&1 || need docker-compose docker-compose

promtool check config deploy/prometheus/prometheus.yml
promtool test rules deploy/prometheus/alerts_test.yml
compose --file docker-compose.yml config --quiet
compose --file docker-compose.yml --profile gpu --profile train config --quiet
BUNDLE=/bundle compose --file docker-compose.yml --file deploy/compose.bundle.yml --profile gpu config --quiet
echo "docker-compose.yml, its profiles and the bundle's file: valid"
