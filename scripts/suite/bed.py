"""When the tests of the test bed need not be run: their proof is for exactly what they load.

The bed is what the cluster tier stands on: planes, their programs, the stand-in of Kueue and the
real one. None of it is Berthmaster's, but for the client that the stand-in uses. Its tests prove
something new only when one of these changed.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scripts.suite.tiers import ROOT

# All that is loaded by tests/bed, go.mod and go.sum among it.
SOURCES: Final = (
    "tests/bed",
    "tests/controlplane",
    "tests/support/patience.py",
    "tests/support/warm.py",
    "services/berthmaster/kubernetes",
    "services/berthmaster/runtime/children.py",
    "uv.lock",
)
_GIVEN: Final = ("KUEUE_BIN", "KUEUE_CRDS", "KUBEBUILDER_ASSETS")
_NOT_LOADED: Final = (".md", ".pyc")


def sources_hash(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> str:
    """Changes whenever one of the bed's files does, or a program that was handed in."""
    digest = hashlib.sha256()
    for name in SOURCES:
        _add(digest, root, root / name)
    for variable in _GIVEN:
        if given := environment.get(variable):
            digest.update(f"{variable}\0".encode())
            _add(digest, Path(given), Path(given))
    return digest.hexdigest()[:16]


def _add(digest: "hashlib._Hash", root: Path, path: Path) -> None:
    if not path.exists():
        digest.update(f"{path.name} is not there\0".encode())
        return
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    for file in files:
        if file.suffix in _NOT_LOADED:
            continue
        content = file.read_bytes()
        name = file.relative_to(root) if file != root else file.name
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
