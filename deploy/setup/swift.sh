#!/usr/bin/env bash
# Makes .tools/swift: an environment with OpenStack Swift, for the tests of S3-compatible stores. An environment of its
# own because eventlet changes the whole process it is in. Safe to run again. About fifteen seconds and 60 MB.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh

venv=${MUSTER_VENV:-.venv}
place=.tools/swift
wanted=deploy/locks/swift.lock
want=$(cat "$wanted" deploy/setup/swift.sh | sha256sum | cut -d' ' -f1)
if [ -f "$place/.installed" ] && [ "$(cat "$place/.installed")" = "$want" ]; then exit 0; fi

give_up() {
  rm -rf "$place"
  case ",${MUSTER_REQUIRE:-}," in *",swift,"*) fail "$1" ;; esac
  say "$1: tests of S3-compatible stores are skipped"
  exit 0
}

say "installing OpenStack Swift (fifteen seconds, 60 MB)"
rm -rf "$place"
mkdir -p .tools
"$venv/bin/python" -m venv --without-pip "$place" || give_up "can't make $place"
"$venv/bin/python" -m pip --python "$place/bin/python" install --quiet --disable-pip-version-check \
  --no-deps --require-hashes --only-binary=:all: -r "$wanted" || give_up "pip could not install $wanted"
echo "$want" >"$place/.installed"
