"""Makes .venv from pinned wheels, or finds in a few milliseconds that it is still right.

Standard library only, since it runs before anything is installed. The stamp in .venv names the hash
of all that is installed from (see SOURCES) and the extras installed; when either changed, pip
brings the environment up to date in place, so that processes using it keep running.

One thing is compiled where there are a compiler and Python's headers, and done without where there
are not: the engine's inner loops, beside their source. One line says which it was.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "berth-env.json"
# Started from .venv itself (the quick way when nothing changed), a new one still needs its parent.
BASE = getattr(sys, "_base_executable", "") or sys.executable
INSTALL_LIMIT_S = 900  # a slow mirror is slow; a dead one should not hold a CI runner for ever

SOURCES = (
    "pyproject.toml",
    "setup.py",
    "services/berthmaster/engine/scoring/_cards.c",
    "services/berthmaster/engine/scoring/_cards.h",
    "services/berthmaster/engine/scoring/_gangs.c",
    "services/berthmaster/engine/scoring/_ranks.c",
    "services/berthmaster/engine/scoring/_scores.c",
    "constraints.txt",
    "constraints-test.txt",
    "scripts/make_env.py",
)
BUILT = "services/berthmaster/engine/scoring/_cards*.so"

LOCK = ROOT / "constraints.txt"
TEST_LOCK = ROOT / "constraints-test.txt"  # what the extra "test" needs beyond
PIP = ["--quiet", "--no-input", "--disable-pip-version-check"]
# What is fetched has its hash in a lock, or is not installed. The locks are whole: there is nothing
# to resolve. nkeys is pure Python but published as source only; the pinned setuptools packs it.
LOCKED = ["--require-hashes", "--no-deps", "--no-build-isolation",
          "--only-binary", ":all:", "--no-binary", "nkeys"]  # fmt: skip
TOOLS = ("pip==", "setuptools==")


class EnvError(Exception):
    """The environment cannot be made; the text says what to do about it."""


def wanted_hash() -> str:
    """Hash of all that decides what is installed; the path too, as an editable install names it."""
    digest = hashlib.sha256(str(ROOT).encode())
    for name in SOURCES:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def installed_extras(wanted: str) -> set[str]:
    """The extras that the environment already has at the wanted hash; none if it has another."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return set()
    return set(stamp["extras"]) if stamp.get("hash") == wanted and PYTHON.exists() else set()


def say(text: str) -> None:
    """One progress line on stderr, as stdout belongs to whatever comes after."""
    print(f"env: {text}", file=sys.stderr, flush=True)


def call(argv: list[str], advice: str) -> None:
    """Run one step; its output is shown only when it failed."""
    try:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_LIMIT_S,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired:
        raise EnvError(f"not done after {INSTALL_LIMIT_S} s: {' '.join(argv)}\n{advice}") from None
    if done.returncode:
        raise EnvError(f"{' '.join(argv)}\n{done.stdout.strip()}\n{advice}")


def make_venv() -> list[str]:
    """Make an empty .venv if there is none or it is broken, and return its pip command."""
    own_pip = [str(PYTHON), "-m", "pip"]
    if PYTHON.exists() and _has_pip(str(PYTHON)):
        return own_pip
    version = sysconfig.get_python_version()
    say(f"making .venv with Python {version}")
    shutil.rmtree(VENV, ignore_errors=True)
    advice = (
        "This Python cannot make environments by itself. Install what it lacks "
        "(Debian, Ubuntu: apt install python3-venv; elsewhere: python3 -m pip install virtualenv)."
    )
    if _can_import("venv", "ensurepip"):
        call([BASE, "-m", "venv", str(VENV)], advice)
    elif _can_import("virtualenv"):
        call([BASE, "-m", "virtualenv", "--quiet", str(VENV)], advice)
    elif _can_import("venv", "pip"):
        call([BASE, "-m", "venv", "--without-pip", str(VENV)], advice)
        foreign_pip = [BASE, "-m", "pip", "--python", str(PYTHON)]
        call([*foreign_pip, "install", *PIP, *LOCKED, "-r", tools()], advice)
    else:
        raise EnvError(advice)
    return own_pip


def _has_pip(python: str) -> bool:
    return _succeeds([python, "-c", "import pip"])


def _can_import(*modules: str) -> bool:
    return _succeeds([BASE, "-c", f"import {', '.join(modules)}"])


def _succeeds(argv: list[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def tools() -> str:
    """The part of the lock that pip itself and the build backend are installed from, as a file."""
    entries = re.split(r"^(?=\S)", LOCK.read_text(), flags=re.MULTILINE)
    listed = VENV / "berth-tools.txt"
    listed.write_text("".join(each for each in entries if each.startswith(TOOLS)))
    return str(listed)


def install(pip: list[str], extras: set[str]) -> None:
    """pip and the build backend first, then all in one go, so that nothing is built apart."""
    advice = "See the lines above; behind a proxy or mirror, set PIP_INDEX_URL or PIP_PROXY."
    say("installing pip and the build backend, as locked")
    call([*pip, "install", *PIP, *LOCKED, "-r", tools()], advice)
    listed = ",".join(sorted(extras))
    say(f"installing berthmaster[{listed}] from wheels, as locked")
    for built in ROOT.glob(BUILT):
        built.unlink()  # of other sources: none is better, should it not be built again
    locks = ["-r", str(LOCK), *(["-r", str(TEST_LOCK)] if "test" in extras else [])]
    call([*pip, "install", *PIP, *LOCKED, *locks], advice)
    call([*pip, "install", *PIP, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], advice)
    compiled = any(ROOT.glob(BUILT))
    without = "not compiled (no compiler, or Python's headers are missing): slower, else the same"
    say(f"the placement engine is {'compiled' if compiled else without}")


def main(extras: set[str]) -> int:
    """Bring .venv up to date; one process at a time."""
    started_s = time.monotonic()
    wanted = wanted_hash()
    if extras <= installed_extras(wanted):
        return 0
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        have = installed_extras(wanted)  # another process may have done it while we waited
        if extras <= have:
            return 0
        try:
            install(make_venv(), extras | have)
        except EnvError as error:
            say(f"failed: {error}")
            return 1
        fresh = STAMP.with_suffix(".new")
        fresh.write_text(json.dumps({"hash": wanted, "extras": sorted(extras | have)}))
        os.replace(fresh, STAMP)  # noqa: PTH105  (the atomic one)
    say(f"ready in {time.monotonic() - started_s:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(set(sys.argv[1].split(","))))
