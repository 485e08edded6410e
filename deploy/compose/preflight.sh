#!/bin/sh
# Checks that this host can run the pool: memory, and with no argument also the settings and files that init and the
# operator make. Runs in the containers `init` and `preflight`.
set -eu
fail() { printf 'preflight: %s\n' "$1" >&2; exit 1; }

have=0
while read -r name value _; do
  case $name in MemTotal:) have=$((value / 1024)) ;; esac
done <"${MEMINFO:-/proc/meminfo}"
need=0
add() { for mib in "$@"; do need=$((need + mib)); done; }
# shellcheck disable=SC2086
add $MIB_ALWAYS
# shellcheck disable=SC2086
case ",$PROFILES," in *,training,*) add $MIB_TRAINING ;; esac
# shellcheck disable=SC2086
case ",$PROFILES," in *,gateway,*) add $MIB_GATEWAY ;; esac
# shellcheck disable=SC2086
case ",$PROFILES," in *,monitoring,*) add $MIB_MONITORING ;; esac
[ "$need" -le "$have" ] || fail "the services may use $need MiB of memory together, and this host has $have MiB: lower \
the limits (POOL_…_MIB in .env), leave profiles out (COMPOSE_PROFILES), or take a larger host"
if [ "${1:-}" = memory ]; then exit 0; fi

case "${POOL_ID:-}" in "" | *[!0-9]*) fail "POOL_ID in .env is not the number of a pool: create the pool (muster pool create)" ;; esac
[ -n "$POOL_URL" ] || fail "POOL_URL is missing in .env: the URL at which workers reach the orchestrator"
[ -n "$POOL_DISCOVERY_URL" ] || fail "POOL_DISCOVERY_URL is missing in .env: the URL at which nodes reach discovery"
case ",$PROFILES," in *,training,*) [ -n "$POOL_RELAY_URL" ] || fail "POOL_RELAY_URL is missing in .env: the URL at which nodes reach the relay" ;; esac
case ",$PROFILES," in *,gateway,*) [ -n "$POOL_GATEWAY_URL" ] || fail "POOL_GATEWAY_URL is missing in .env: the URL at which tasks reach the gateway" ;; esac
case "$POOL_SERVING:${POOL_GATEWAY_URL:+given}" in false: | true:given) ;; *) fail "a run that serves needs both POOL_SERVING=true and POOL_GATEWAY_URL in .env, and a run that trains neither" ;; esac
[ -r /etc/muster/muster.toml ] || fail "there is no config/muster.toml in the pool's folder: run init first"
[ -r /etc/muster/deployment.json ] || fail "there is no config/deployment.json in the pool's folder: copy it there (muster ledger deploy writes it)"
read -r url </run/secrets/chain-url || true
[ -n "$url" ] || fail "secrets/chain-url in the pool's folder is empty: write the URL of the chain's JSON-RPC endpoint into it"
