#!/usr/bin/env bash
# The whole suite, or what the arguments select. What failed runs once more by itself, and both outcomes are shown:
# thousands of tests of real processes share two cores here (docs/decisions/0047).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${MUSTER_VENV:-.venv}/bin/python
most=3  # failures that a busy machine explains; more of them are the code's, and stand as they are
failed=.pytest_cache/v/cache/lastfailed
flaky=""

tests() {
  local status=0 again=0 names again_names
  "$python" -m pytest "$@" || status=$?
  case $status in
    0 | 5) return 0 ;;  # 5: there are none of that kind
    1) ;;
    *) return "$status" ;;
  esac
  names=$("$python" -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$failed")
  if [ "$(wc -l <<<"$names")" -gt "$most" ]; then return 1; fi
  printf '\n== failed; once more, with nothing beside it:\n%s\n' "$names"
  mapfile -t again_names <<<"$names"
  "$python" -m pytest -n 0 "${again_names[@]}" || again=$?
  if [ $again -ne 0 ]; then printf '\n== failed twice (pytest ended with %s)\n' $again; return 1; fi
  flaky+="$names"$'\n'
}

# Three processes share what can be shared, on two cores: a test of real processes waits for them half of its time
# (docs/decisions/0050). Tests marked `alone` come after it, one at a time.
tests -n "${MUSTER_TEST_PROCESSES:-3}" --dist loadfile -m "not alone" "$@"
tests -m alone "$@"
if [ -n "$flaky" ]; then printf '\n== FAILED THE FIRST TIME, passed the second; find out why:\n%s' "$flaky"; fi
