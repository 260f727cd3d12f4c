#!/bin/sh
# Installs what the build, the tests and the demo need from Debian or Ubuntu, or prints the line that would.
set -eu
packages="gcc make pkg-config libopenmpi-dev openmpi-bin libhdf5-openmpi-dev hdf5-tools libyaml-dev libjansson-dev
          libpcre2-dev libxxhash-dev libopenblas-dev libcmocka-dev gnuplot-nox"
missing=
for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here; the build needs the libraries behind these Debian packages:$missing" >&2
    exit 1
fi
line="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" = 0 ]; then sudo=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo=sudo
else
    echo "setup: missing packages; please run:  sudo $line" >&2
    exit 1
fi
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# shellcheck disable=SC2086
if ! { $sudo $line || { $sudo apt-get update && $sudo $line; }; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "setup: failed; the line was:  $line" >&2
    exit 1
fi
rm -f "$log"
