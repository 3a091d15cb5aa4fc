"""axe-core, the accessibility checker, as npm has it: fetched once and known by its digest."""

import base64
import hashlib
import io
import os
import tarfile
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page

from tests.support.patience import hang_s

VERSION: Final = "4.14.1"
SHA512: Final = (
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)
URL: Final = f"https://registry.npmjs.org/axe-core/-/axe-core-{VERSION}.tgz"


def source() -> str:
    """The script. Skips the test, with why, where npm's registry cannot be reached."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berthmaster"
    kept = cache / f"axe-core-{VERSION}.tgz"
    packed = kept.read_bytes() if kept.is_file() else b""
    if not _is_right(packed):
        try:
            with urllib.request.urlopen(URL, timeout=hang_s()) as answer:
                packed = answer.read()
        except OSError as error:
            pytest.skip(f"axe-core cannot be had from {URL}: {error}")
        assert _is_right(packed), f"{URL} is not what was looked at when this test was written"
        cache.mkdir(parents=True, exist_ok=True)
        kept.with_suffix(f".{os.getpid()}").write_bytes(packed)
        kept.with_suffix(f".{os.getpid()}").replace(kept)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def _is_right(packed: bytes) -> bool:
    return base64.b64encode(hashlib.sha512(packed).digest()).decode() == SHA512


def serious(page: Page) -> list[str]:
    """What is serious or critical on a page that has the script: rule, element, and why."""
    found: list[dict[str, Any]] = page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((all) => all.violations)"
    )
    return [
        f"{each['id']}: {node['html'][:160]} ({node['failureSummary'][:300]})"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
