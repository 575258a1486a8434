#!/usr/bin/env bash
# Names what runs containers on this machine, as lines for a shell: ENGINE=... COMPOSE=... BUILD=...
# Where there is `docker compose`, that. Else podman and podman-compose; on Debian they are installed if they are missing, and if no
# registry has the images' base, it is made from Debian's own packages. Needs root for that, and about three minutes, once.
set -euo pipefail
cd "$(dirname "$0")/.."

base=python:3.11-slim
venv=${XDG_CACHE_HOME:-$HOME/.cache}/tetrad/podman-compose

say() { echo "container_engine.sh: $*" >&2; }

install_podman() {
  command -v apt-get >/dev/null || { say "there is neither docker compose nor podman: install one"; exit 1; }
  say "installing podman"
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq podman runc >&2
  [ -e /etc/containers/containers.conf ] || configuration >/etc/containers/containers.conf
}

# Without systemd the default runtime cannot make control groups. Where not even root may raise limits, podman's own are too high.
configuration() {
  printf '[engine]\nruntime = "runc"\n'
  prlimit --nofile=1048576:1048576 true 2>/dev/null ||
    printf '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
}

make_base() {
  say "no registry has $base: making it from Debian's packages"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq debootstrap >&2
  local root
  root=$(mktemp -d)
  debootstrap --variant=minbase --include=python3-pip,python3-venv,ca-certificates bookworm "$root" "$(debian_mirror)" >&2
  ln -s python3 "$root/usr/bin/python"
  tar -C "$root" -c . | podman import - "docker.io/library/$base" >&2
  rm -rf "$root"
}

debian_mirror() {
  cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' '
}

if docker compose version >/dev/null 2>&1; then
  printf 'ENGINE=docker\nCOMPOSE="docker compose"\nBUILD="docker build"\n'
  exit
fi
command -v podman >/dev/null || install_podman
podman image exists "docker.io/library/$base" || timeout 300 podman pull -q "docker.io/library/$base" >&2 || make_base
if [ ! -x "$venv/bin/podman-compose" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r tests/compose/requirements.txt >&2
fi
printf 'ENGINE=podman\nCOMPOSE=%s\nBUILD="podman build"\n' "$venv/bin/podman-compose"
