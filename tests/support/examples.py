"""The examples of docs/examples, built once for what they are made of and kept in the cache.

Each gives the words that start it. One that cannot be built here, since its tools are missing or
their registry does not answer, is skipped with the reason.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from berthmaster.lab.controlplane.compiling import cache_root

FOLDER: Final = Path(__file__).parents[2] / "docs" / "examples"
BUILD_LIMIT_S: Final = 150
OFFLINE: Final = (  # how the tools say that nobody answers; whatever else they say is our fault
    *("dial tcp", "no such host", "i/o timeout", "connection refused", "TLS handshake timeout"),
    *("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ECONNRESET", "ERR_SOCKET_TIMEOUT"),
)


def in_python() -> list[str]:
    return [sys.executable, str(FOLDER / "submit_and_follow.py")]


def in_go() -> list[str]:
    go = _tool("go", "/usr/local/go/bin")

    def build(folder: Path) -> None:
        shutil.copytree(FOLDER / "go", folder, dirs_exist_ok=True)
        own = {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "GOTOOLCHAIN": "local"}
        _run([go, "build", "-trimpath", "-o", "follow", "."], folder, own)

    return [str(_kept(FOLDER / "go", build) / "follow")]


def in_node() -> list[str]:
    """A module, beside what `npm ci` brings by the lock file."""
    node, npm = _tool("node"), _tool("npm")

    def build(folder: Path) -> None:
        for file in ("package.json", "package-lock.json", "submit_and_follow.mjs"):
            shutil.copy(FOLDER / "node" / file, folder)
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0")
        _run([npm, "ci", *quiet], folder, {})

    return [node, str(_kept(FOLDER / "node", build) / "submit_and_follow.mjs")]


def _tool(name: str, *places: str) -> str:
    path = os.pathsep.join((os.environ.get("PATH", ""), *places))
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def _kept(sources: Path, build: Callable[[Path], None]) -> Path:
    """The folder in which it was built; a changed source or pin is another folder."""
    digest = hashlib.sha256()
    for file in sorted(path for path in sources.iterdir() if path.is_file()):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    root = cache_root(os.environ).parent / "examples"
    kept = root / f"{sources.name}-{digest.hexdigest()[:16]}"
    if kept.is_dir():
        return kept
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{sources.name}-") as made:
        whole = Path(made) / "whole"
        whole.mkdir()
        build(whole)
        try:
            whole.rename(kept)
        except OSError:  # somebody else was first
            assert kept.is_dir()
    return kept


def _run(argv: list[str], folder: Path, own: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{argv[0]} did not end within {BUILD_LIMIT_S} s")
    said = done.stdout + done.stderr
    if done.returncode and any(word in said for word in OFFLINE):
        pytest.skip(f"{argv[0]}: no answer of the registry: {said.strip().splitlines()[-1]}")
    assert done.returncode == 0, said
