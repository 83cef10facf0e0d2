#!/usr/bin/env bash
# loopback.sh COMMAND...: runs it in a network of its own with nothing but 127.0.0.1, so that no server that it starts can
# be reached from elsewhere. Needs Linux, which must let users have namespaces, and iproute2.
set -euo pipefail
unshare --map-root-user --net true 2>/dev/null || { echo "unshare cannot make a network here (util-linux)." >&2; exit 3; }
exec unshare --map-root-user --net sh -c 'ip link set lo up && exec "$@"' sh "$@"
