# Sourced by the other scripts: makes .venv as uv.lock says and puts it first on PATH.
#
# pip brings uv first, with the hashes in scripts/uv.txt, and uv brings the rest. When nothing has changed
# this takes a tenth of a second. BERTH_SYNC holds options of `uv sync`, say "--inexact --no-group dev".
berth_root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
berth_venv="$berth_root/.venv"

berth_say() { echo "env: $*" >&2; }

berth_python() {
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        # Run each candidate: a shim on PATH may have no Python behind it.
        if "$candidate" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    berth_say "no Python 3.11 or newer on PATH; install one (Debian: apt install python3 python3-venv)"
    return 1
}

# An environment with nothing but uv in it.
berth_bootstrap() {
    base=$(berth_python) || return 1
    berth_say "making .venv with $("$base" --version)"
    rm -rf "$berth_venv"
    set -- install --quiet --no-input --disable-pip-version-check --require-hashes -r "$berth_root/scripts/uv.txt"
    if "$base" -I -c 'import ensurepip, venv' 2>/dev/null; then
        "$base" -m venv "$berth_venv" && "$berth_venv/bin/python" -m pip "$@"
    elif "$base" -c 'import pip, venv' 2>/dev/null; then
        "$base" -m venv --without-pip "$berth_venv" && "$base" -m pip --python "$berth_venv/bin/python" "$@"
    else
        berth_say "$base has no module venv or ensurepip; install them (Debian, Ubuntu: apt install python3-venv)"
        return 1
    fi
}

berth_uv() { "$berth_venv/bin/uv" --project "$berth_root" --no-python-downloads "$@"; }

berth_sync() {
    if ! { "$berth_venv/bin/python" -I -S -c '' && "$berth_venv/bin/uv" --version; } >/dev/null 2>&1; then
        berth_bootstrap || return 1
    fi
    # shellcheck disable=SC2086 # BERTH_SYNC is a list
    set -- sync --quiet --locked --all-extras --python "$berth_venv/bin/python" ${BERTH_SYNC:-}
    berth_uv "$@" --check 2>/dev/null && return
    berth_say "installing what uv.lock says"
    berth_uv "$@" || return 1
    for built in "$berth_root"/services/berthmaster/lib/engine/scoring/_cards*.so; do
        [ -e "$built" ] || berth_say "no compiler or no Python headers here: the engine scores with numpy, which is slower"
    done
}

# Without bytecode on disk each of the many processes of a run compiles all modules anew, which doubles
# the time of its start.
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
export UV_HTTP_TIMEOUT
(
    ! command -v flock >/dev/null || flock 9
    berth_sync
) 9>"$berth_root/.venv.lock" || exit 1
VIRTUAL_ENV="$berth_venv"
PATH="$VIRTUAL_ENV/bin:$PATH"
export VIRTUAL_ENV PATH
