#!/usr/bin/env bash
# Prometheus' and Compose's own checks of what is in this directory. need.sh says what to install where it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

compose() {
  if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi
}

deploy/need.sh promtool prometheus
docker compose version >/dev/null 2>&1 || deploy/need.sh docker-compose docker-compose

promtool check config deploy/prometheus/prometheus.yml
promtool test rules deploy/prometheus/alerts_test.yml
compose --file docker-compose.yml config --quiet
compose --file docker-compose.yml --profile gpu --profile train config --quiet
BUNDLE=/bundle compose --file docker-compose.yml --file deploy/compose.bundle.yml --profile gpu config --quiet
MODELS=/models compose --file docker-compose.yml --file deploy/compose.models.yml --profile gpu config --quiet
echo "docker-compose.yml, its profiles and the files of a bundle and of models: valid"
