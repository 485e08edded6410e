#!/bin/sh
# Makes keys, passwords and the settings file of a pool in /pool, the operator's folder. Overwrites nothing, so it can be
# repeated. Runs in the container `init`, as root, to give each file to the user that reads it.
set -eu
umask 077
sh /compose/preflight.sh memory
cd /pool
mkdir -p secrets config backups
chmod 0755 config
services=65532 redis=999 grafana=472
chown "$services" backups

muster() { python3 -m muster_network "$@"; }
random() { python3 -c 'import secrets; print(secrets.token_hex(32))'; }
# store NAME USER TEXT: writes a secret unless it exists, at once or not at all, so that a full disk leaves no empty one.
store() {
  if [ ! -e "secrets/$1" ]; then
    printf '%s\n' "$3" >"secrets/$1.part"
    mv "secrets/$1.part" "secrets/$1"
  fi
  chown "$2" "secrets/$1"
}

for role in discovery orchestrator validator publisher gateway; do
  export MUSTER_KEYS_DIRECTORY=/pool/secrets MUSTER_KEYS_PASSWORD_FILE=/pool/secrets/$role-password
  [ -e "secrets/$role.json" ] || muster keys new "$role" >/dev/null
  chown "$services" "secrets/$role.json" "secrets/$role-password"
  printf '%-14s %s\n' "$role" "$(muster keys show "$role" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["address"])')"
done

fresh=$(random)  # a failure ends the script here, but not within an argument
store redis.conf "$redis" "requirepass $fresh"
read -r _ password <secrets/redis.conf
store redis-url "$services" "redis://:$password@redis:6379/0"
store redis-discovery-url "$services" "redis://:$password@redis-discovery:6379/0"
fresh=$(random)
store grafana-password "$grafana" "$fresh"
fresh=$(random)
store backup-passphrase "$services" "$fresh"
store chain-url "$services" ""

if [ ! -e config/muster.toml ]; then
  made=$(muster token new --json)
  field() { printf '%s' "$made" | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
  field token >secrets/owner-token  # without settings no token is in use, so an older one is replaced
  cat >config/muster.toml.part <<END
# Settings of the pool's services: \`muster settings SERVICE\` lists them. Those in pool.yml and .env take precedence.
[[orchestrator.tokens]]
name = "owner"
scope = "admin"
hash = "$(field hash)"
END
  mv config/muster.toml.part config/muster.toml
  printf '\nThe token of the owner'"'"'s API is in secrets/owner-token.\n'
fi
chown "$services" config/muster.toml
chmod 0444 config/muster.toml
