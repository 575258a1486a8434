#!/usr/bin/env bash
# Makes a release of the commit that is checked out: checks and tests it, builds dist/*.whl, and tags it v<VERSION>.
# From then on `make skew-test` and `make check-breaking` compare with that tag. Publishes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "release.sh: $*" >&2; exit 1; }

version=$(cat VERSION)
[ -z "$(git status --porcelain)" ] || die "there are changes that are not committed"
git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null && die "v$version is released; raise VERSION"
grep -q "^## $version " CHANGELOG.md || die "CHANGELOG.md says nothing of $version"

make check test exhaustive-test embeddings-test
rm -rf dist
.venv/bin/python tools/wheels.py
git tag --annotate "v$version" --message "Tetrad $version"
echo "Built $(ls dist/*.whl), tagged v$version. To publish: git push origin v$version"
