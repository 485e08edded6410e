#!/usr/bin/env bash
# Makes sure that a Docker engine answers. If none does, dockerd is installed and this user is root, it starts one and
# prints how to stop it. Its files go under the directory named as argument (default: /var/tmp/muster-engine).
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh

home=${1:-/var/tmp/muster-engine}
host=${DOCKER_HOST:-unix:///var/run/docker.sock}
required() { case ",${MUSTER_REQUIRE:-}," in *",docker,"*) return 0 ;; *) return 1 ;; esac; }
give_up() { if required; then fail "$1"; fi; say "$1: Docker tests are skipped"; exit 0; }
answers() { curl --silent --fail --max-time 5 --unix-socket "${host#unix://}" http://docker/_ping >/dev/null 2>&1; }

case $host in unix://*) ;; *) give_up "DOCKER_HOST is $host, not a unix socket of this machine" ;; esac
if answers; then exit 0; fi
PATH="$PATH:/usr/sbin:/sbin"
command -v dockerd >/dev/null 2>&1 || give_up "no Docker engine answers, and dockerd is not installed (Debian: docker.io)"
[ "$(id -u)" = 0 ] || give_up "no Docker engine answers, and only root can start one"

mkdir -p "$home"
pidfile="$home/docker.pid"
setsid nohup dockerd --host "$host" --data-root "$home/data" --exec-root "$home/exec" --pidfile "$pidfile" \
  >"$home/log" 2>&1 </dev/null &
for _ in $(seq 150); do
  if answers; then
    say "started a Docker engine; stop it with: kill \$(cat $pidfile)"
    exit 0
  fi
  sleep 0.2
done
tail -5 "$home/log" >&2
give_up "dockerd did not start (see $home/log)"
