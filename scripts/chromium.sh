#!/bin/sh
# Runs a command with a Chromium at hand: scripts/chromium.sh COMMAND [ARGUMENT…]
#
# One that is there is used (BERTH_CHROMIUM, or chromium on PATH). Otherwise root gets Debian's. Where
# none can be had the command runs all the same, with the reason in BERTH_CHROMIUM_MISSING, so that
# tests can be skipped with it.
set -u

find_it() {
    for each in "${BERTH_CHROMIUM:-}" chromium chromium-browser google-chrome; do
        [ -n "$each" ] && command -v "$each" && return 0
    done
    return 1
}

without() {
    echo "chromium: none: $1" >&2
    BERTH_CHROMIUM_MISSING="$1"
    export BERTH_CHROMIUM_MISSING
    shift
    exec "$@"
}

[ $# -gt 0 ] || { echo "usage: scripts/chromium.sh COMMAND [ARGUMENT…]" >&2; exit 2; }
if ! found=$(find_it); then
    [ "$(id -u)" = 0 ] || without "no Chromium here, and only root can install Debian's" "$@"
    command -v apt-get >/dev/null || without "no Chromium here, and no apt-get to install it" "$@"
    echo "chromium: installing Debian's chromium" >&2
    export DEBIAN_FRONTEND=noninteractive
    timeout 400 apt-get -qq install -y --no-install-recommends chromium >/dev/null 2>&1 ||
        { timeout 120 apt-get -qq update >&2 &&
            timeout 400 apt-get -qq install -y --no-install-recommends chromium >/dev/null 2>&1; }
    found=$(find_it) || without "Debian's chromium cannot be installed: see apt-get install chromium" "$@"
fi
BERTH_CHROMIUM="$found"
export BERTH_CHROMIUM
exec "$@"
