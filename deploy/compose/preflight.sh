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

case "${POOL_ID:-}" in "" | 0* | *[!0-9]*) fail "POOL_ID in .env is not the number of a pool: create the pool (muster pool create)" ;; esac
[ -n "$POOL_URL" ] || fail "POOL_URL is missing in .env: the URL at which workers reach the orchestrator"
case "$POOL_SUBNET:$POOL_PROXY" in ?*:) fail "POOL_SUBNET is set in .env without POOL_PROXY: the address from which the \
reverse proxy's requests arrive there, such as the first one of the subnet (10.9.0.1/32)" ;; esac
[ -n "$POOL_DISCOVERY_URL" ] || fail "POOL_DISCOVERY_URL is missing in .env: the URL at which nodes reach discovery"
case ",$PROFILES," in *,training,*) [ -n "$POOL_RELAY_URL" ] || fail "POOL_RELAY_URL is missing in .env: the URL at which nodes reach the relay" ;; esac
case ",$PROFILES," in *,gateway,*) [ -n "$POOL_GATEWAY_URL" ] || fail "POOL_GATEWAY_URL is missing in .env: the URL at which tasks reach the gateway" ;; esac
case "$POOL_SERVING:${POOL_GATEWAY_URL:+given}" in false: | true:given) ;; *) fail "a run that serves needs both POOL_SERVING=true and POOL_GATEWAY_URL in .env, and a run that trains neither" ;; esac
for pair in "POOL_URL=$POOL_URL" "POOL_DISCOVERY_URL=$POOL_DISCOVERY_URL" "POOL_RELAY_URL=$POOL_RELAY_URL" "POOL_GATEWAY_URL=$POOL_GATEWAY_URL"; do
  case "$POOL_ALLOW_PLAIN_HTTP:${pair#*=}" in *: | *:https://?* | true:http://?*) ;; *) fail "${pair%%=*} in .env is \
'${pair#*=}', which does not begin with https:// (http:// needs POOL_ALLOW_PLAIN_HTTP=true, for encrypted networks)" ;; esac
done
[ -r /etc/muster/muster.toml ] || fail "there is no config/muster.toml in the pool's folder: run init first"
[ -e /etc/muster/deployment.json ] || fail "there is no config/deployment.json in the pool's folder: copy it there (muster ledger deploy writes it)"
[ -r /etc/muster/deployment.json ] || fail "config/deployment.json in the pool's folder is not readable by the user 65532: chmod 0644"
url=
read -r url </run/secrets/chain-url || true
[ -n "$url" ] || fail "secrets/chain-url in the pool's folder is empty: write the URL of the chain's JSON-RPC endpoint into it"
case ",$PROFILES," in *,training,*) [ -r /base/recipe.json ] || fail "the trainer has no base model: the folder of POOL_BASE in \
.env (by default pool/base) needs weights, tokenizer and recipe.json, readable by the user 65532" ;; esac
