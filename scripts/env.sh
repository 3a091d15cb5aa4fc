# Sourced by the other scripts: makes .venv with what "$BERTH_EXTRAS" asks for (default: all,test)
# and puts it first on PATH. When nothing has changed this costs one short start of Python.
berth_root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1

berth_python() {
    for candidate in python3 python3.13 python3.12 python3.11; do
        # Asked, not only found: a shim on PATH may have no Python behind it.
        if "$candidate" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "env: no Python 3.11 or newer on PATH; install one (Debian: apt install python3 python3-venv)" >&2
    exit 1
}

if [ -x "$berth_root/.venv/bin/python" ] && "$berth_root/.venv/bin/python" -I -S -c '' 2>/dev/null; then
    berth_base="$berth_root/.venv/bin/python"
else
    berth_base=$(berth_python) || exit 1
fi
"$berth_base" -I -S "$berth_root/scripts/make_env.py" "${BERTH_EXTRAS:-all,test}" || exit 1
VIRTUAL_ENV="$berth_root/.venv"
PATH="$VIRTUAL_ENV/bin:$PATH"
export VIRTUAL_ENV PATH
unset PYTHONHOME PYTHONPATH
