# Shared by the set-up scripts: messages, and installation of Debian packages where it is permitted.
say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

can_install() {
  [ "${MUSTER_NO_INSTALL:-}" = "" ] && command -v apt-get >/dev/null 2>&1 || return 1
  [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }
}

install_packages() {
  local log
  log=$(mktemp)
  if ! { as_root apt-get install -y -q --no-install-recommends "$@" ||
    { as_root apt-get update -q && as_root apt-get install -y -q --no-install-recommends "$@"; }; } >"$log" 2>&1 </dev/null; then
    tail -5 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}
