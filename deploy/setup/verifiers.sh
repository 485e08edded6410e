#!/usr/bin/env bash
# Makes .tools/verifiers: an environment with verifiers on top of .venv's packages, for the tests of its train client and of
# its tasksets. An environment of its own because verifiers needs an older `openai`. Safe to run again. About ten seconds and
# 100 MB.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh
tool_environment verifiers verifiers verifiers "ten seconds, 100 MB" base
