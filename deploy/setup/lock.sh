#!/usr/bin/env bash
# Pins every dependency, with hashes, for all supported Pythons on Linux: requirements.lock. All but torch: which build of
# it is right depends on the machine, so python.sh chooses one (pyproject.toml says what torch needs).
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=${MUSTER_VENV:-.venv}
"$venv/bin/python" -m pip install --quiet 'uv>=0.9'
"$venv/bin/uv" pip compile pyproject.toml deploy/setup/build-requirements.in --extra dev --universal --python-version 3.11 \
  --generate-hashes --no-emit-package torch --no-emit-index-url --no-header --no-annotate --quiet --output-file requirements.lock "$@"
echo "requirements.lock: $(grep -c '^[a-z0-9].*==' requirements.lock) packages"
