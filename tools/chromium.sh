#!/usr/bin/env bash
# Prints the path of a Chromium; on Debian it is installed if there is none, which needs root.
set -euo pipefail

find_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

if ! find_browser; then
  command -v apt-get >/dev/null || { echo "chromium.sh: there is no Chromium on this machine: install one" >&2; exit 1; }
  [ "$(id -u)" = 0 ] || { echo "chromium.sh: there is no Chromium; as root: apt-get install chromium" >&2; exit 1; }
  echo "chromium.sh: installing chromium" >&2
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >&2
  find_browser
fi
