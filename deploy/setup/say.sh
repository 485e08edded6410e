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

# Makes .tools/NAME, an environment of its own with the packages of deploy/locks/LOCK.lock, unless it is there already. With
# `base`, the packages of .venv can be imported too. If it can't be made, tests of WHAT are skipped, unless MUSTER_REQUIRE
# has NAME. Arguments: NAME LOCK WHAT COST [base].
tool_environment() {
  local name=$1 lock=deploy/locks/$2.lock what=$3 cost=$4 base=${5:-}
  local venv=${MUSTER_VENV:-.venv} place=.tools/$1 want failed=""
  want=$(cat "$lock" deploy/setup/say.sh ${base:+requirements.lock} | sha256sum | cut -d' ' -f1)
  if [ -f "$place/.installed" ] && [ "$(cat "$place/.installed")" = "$want" ]; then return 0; fi
  say "installing $what ($cost)"
  rm -rf "$place"
  mkdir -p .tools
  if ! "$venv/bin/python" -m venv --without-pip "$place"; then
    failed="can't make $place"
  elif [ -n "$base" ] && ! "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/muster.pth"; then
    failed="can't write in $place"
  elif ! "$venv/bin/python" -m pip --python "$place/bin/python" install --quiet --disable-pip-version-check \
    --no-deps --require-hashes --only-binary=:all: -r "$lock"; then
    failed="pip could not install $lock"
  fi
  if [ -z "$failed" ]; then
    echo "$want" >"$place/.installed"
    return 0
  fi
  rm -rf "$place"
  case ",${MUSTER_REQUIRE:-}," in *",$name,"*) fail "$failed" ;; esac
  say "$failed: tests of $what are skipped"
}
