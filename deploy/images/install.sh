#!/bin/sh
# Installs the packages of an image from its locks, by hash, and lists them as CycloneDX in /opt/muster/sbom.cdx.json. Runs in the
# Dockerfiles of this folder.
#     install.sh services          what services without a model need
#     install.sh cpu|cuda|vllm     what generates and checks rollouts: torch for CPUs or NVIDIA GPUs, or vLLM for GPUs
set -eu
locks=$(dirname "$0")
install() { pip install --no-cache-dir --require-hashes --only-binary=:all: --no-deps "$@"; }
case $1 in
  services) install -r "$locks/services.lock" ;;
  cpu)
    install --index-url https://download.pytorch.org/whl/cpu -r "$locks/torch-cpu.lock"
    install -r "$locks/rollouts.lock" -r "$locks/reasoning-gym.lock"
    ;;
  cuda) install -r "$locks/torch-cuda.lock" -r "$locks/rollouts.lock" -r "$locks/reasoning-gym.lock" ;;
  vllm)
    install -r "$locks/vllm.lock"
    install -r "$locks/reasoning-gym.lock"
    ;;
  *) echo "install.sh: unknown set of packages '$1'; one of services, cpu, cuda, vllm" >&2; exit 2 ;;
esac

# The tool that lists them has an environment of its own, which is not part of the image.
python3 -m venv /opt/sbom
/opt/sbom/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: --no-deps -r "$locks/sbom.lock"
/opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-file "$locks/sbom.cdx.json" "$(command -v python3)"
rm -rf /opt/sbom
