#!/bin/sh
# Runs a command with a Docker engine at hand: scripts/engine.sh COMMAND [ARGUMENT…]
#
# An engine that already answers (DOCKER_HOST, or the usual socket) is used and left as it is.
# Otherwise root gets one for the time of the command: Debian's docker.io, installed where it is
# missing, its daemon and the command together in namespaces of their own (processes, mounts and
# network). So the machine's bridges and firewall are not touched, and whatever ends the command,
# kill -9 included, ends the daemon and every container with it. Images stay cached from run to run.
# Inside there is no outside network: what images are made of is fetched before (scripts/images).
#
# Where no engine can be had the command runs all the same, with the reason in BERTH_ENGINE_MISSING,
# so that tests can be skipped with it. BERTH_ENGINE=off asks for exactly that.
set -u

engine_root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
engine_cache="${XDG_CACHE_HOME:-$HOME/.cache}/berthmaster"
START_LIMIT_S=30
STOP_LIMIT_S=15

say() { echo "engine: $*" >&2; }

without() {
    say "none: $1"
    BERTH_ENGINE_MISSING="$1"
    export BERTH_ENGINE_MISSING
    shift
    exec "$@"
}

answers() { command -v docker >/dev/null && timeout 10 docker version >/dev/null 2>&1; }

install_engine() {
    command -v apt-get >/dev/null || { echo "no Docker engine here, and no apt-get to install docker.io"; return 1; }
    say "installing Debian's docker.io and debootstrap"
    export DEBIAN_FRONTEND=noninteractive
    for attempt in first second; do
        # Package lists may be absent or old: asked for anew only when the first attempt shows it.
        [ "$attempt" = second ] && timeout 120 apt-get -qq update >&2
        timeout 300 apt-get -qq install -y --no-install-recommends docker.io debootstrap >/dev/null 2>&1 &&
            return 0
    done
    echo "docker.io cannot be installed: see apt-get install docker.io debootstrap"
    return 1
}

# ---- the second half: inside the namespaces

inside() {
    run=$1
    shift
    ip link set lo up || exit 1
    setsid dockerd --data-root "$engine_cache/engine" --exec-root "$run/exec" \
        --pidfile "$run/pid" --host "unix://$run/docker.sock" \
        --bridge none --shutdown-timeout 5 >"$run/log" 2>&1 &
    daemon=$!
    DOCKER_HOST="unix://$run/docker.sock"
    export DOCKER_HOST
    waited_s=0
    until answers; do
        if ! kill -0 "$daemon" 2>/dev/null || [ "$waited_s" -ge "$START_LIMIT_S" ]; then
            reason=$(sed -n 's/.*level=\(error\|fatal\).*msg="\(.*\)".*/\2/p; /^failed/p' "$run/log" | tail -n 1)
            without "Debian's dockerd does not start here: ${reason:-no answer in $START_LIMIT_S s}" "$@"
        fi
        sleep 1
        waited_s=$((waited_s + 1))
    done
    say "started $(docker version --format 'docker {{.Server.Version}}') for this run, in namespaces of its own"
    "$@" &
    command=$!
    trap 'kill -TERM "$command" 2>/dev/null' TERM INT
    wait "$command"
    code=$?
    # A caught signal ends the first wait early; the command still gets to finish.
    kill -0 "$command" 2>/dev/null && { wait "$command"; code=$?; }
    timeout 30 docker image prune --force --filter until=168h >/dev/null 2>&1
    kill -TERM "$daemon" 2>/dev/null
    timeout "$STOP_LIMIT_S" tail --pid="$daemon" -f /dev/null
    say "stopped"
    exit "$code" # the end of process 1 ends whatever is left
}

if [ "${1:-}" = --inside ]; then
    shift
    inside "$@"
fi

# ---- the first half: what is there, and what may be done about it

[ $# -gt 0 ] || { echo "usage: scripts/engine.sh COMMAND [ARGUMENT…]" >&2; exit 2; }
[ "${BERTH_ENGINE:-}" = off ] && without "switched off by BERTH_ENGINE=off" "$@"
answers && exec "$@"
[ -n "${DOCKER_HOST:-}" ] && without "the engine at DOCKER_HOST=$DOCKER_HOST does not answer" "$@"
[ "$(id -u)" = 0 ] || without "no Docker engine answers, and only root can start one" "$@"
if ! command -v dockerd >/dev/null; then
    reason=$(install_engine) || without "$reason" "$@"
    answers && exec "$@" # where there is an init system the package has started it
fi
for tool in unshare setpriv setsid ip docker; do
    command -v "$tool" >/dev/null || without "no engine answers, and '$tool' is missing to start one" "$@"
done
unshare --mount --pid --fork --mount-proc --net true 2>/dev/null ||
    without "this machine lets nobody make namespaces, so no engine can be started" "$@"

# For the tests that push: they are skipped without it.
command -v docker-registry >/dev/null || ! command -v apt-get >/dev/null ||
    DEBIAN_FRONTEND=noninteractive timeout 120 apt-get -qq install -y --no-install-recommends docker-registry >/dev/null 2>&1 ||
    say "no docker-registry here, and apt-get does not install it"

mkdir -p "$engine_cache" || exit 1
exec 9>"$engine_cache/engine.lock"
flock -w 600 9 || without "another run has held the engine for 600 s" "$@"
# While there is still a network: the base image and the wheels, cached.
sh "$engine_root/scripts/images" fetch || without "what the images are made of cannot be had, see above" "$@"

rm -rf /tmp/berth-engine.* # of runs that were killed; those of others cannot be, we hold the lock
run=$(mktemp -d /tmp/berth-engine.XXXXXX) || exit 1
trap 'rm -rf "$run"' EXIT
# unshare itself waits deaf for its child: the signal is for the child. Where none is found, all ends.
pass_on() {
    child=$(cat "/proc/$inner/task/$inner/children" 2>/dev/null)
    kill -TERM ${child:-"$inner"} 2>/dev/null || kill -KILL "$inner" 2>/dev/null
}
trap pass_on TERM INT
# The lock's descriptor is not handed on: it must go with this shell.
setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc --net \
    sh "$0" --inside "$run" "$@" 9>&- &
inner=$!
wait "$inner"
code=$?
kill -0 "$inner" 2>/dev/null && { wait "$inner"; code=$?; }
exit "$code"
