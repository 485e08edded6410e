#!/usr/bin/env bash
# Makes .tools/swift: an environment with OpenStack Swift, for the tests of S3-compatible stores. An environment of its
# own because eventlet changes the whole process it is in. Safe to run again. About fifteen seconds and 60 MB.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh
tool_environment swift swift "OpenStack Swift" "fifteen seconds, 60 MB"
