#!/usr/bin/env bash
# need.sh PROGRAM PACKAGE: ends well if the program is there. Where it is not, it says what to install; only with
# INSTALL=yes, or in CI (CI=true), it installs the Debian package itself, as root.
set -euo pipefail
command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] && exit 0
if [ "${INSTALL:-}" != yes ] && [ "${CI:-}" != true ]; then
  echo "$1 is missing. On Debian: apt-get install $2, or INSTALL=yes before this command, as root." >&2
  exit 1
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "$1 is missing, and only root on Debian can install it here; install it yourself (Debian: $2)." >&2
  exit 1
fi
echo "installing $2 with apt-get" >&2
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o DPkg::Lock::Timeout=300 --no-install-recommends "$2" >/dev/null
