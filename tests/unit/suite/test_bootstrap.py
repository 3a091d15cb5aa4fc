"""scripts/env.sh installs uv by pip before anything reads uv.lock."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_uv_that_pip_installs_first_is_the_locked_one() -> None:
    text = (ROOT / "scripts" / "uv.txt").read_text()
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (locked,) = [each for each in lock["package"] if each["name"] == "uv"]
    hashes = {each["hash"] for each in (*locked["wheels"], locked["sdist"])}
    assert re.findall(r"^uv==(\S+)", text, re.MULTILINE) == [locked["version"]]
    assert set(re.findall(r"--hash=(\S+)", text)) == hashes
