"""The files in schemas/: what they should hold, and what differs."""

import json
from pathlib import Path
from typing import Any

from scripts.schema_tools.asyncapi import document
from scripts.schema_tools.json_schema import MESSAGES, file_name, schema_of


def generated() -> dict[str, bytes]:
    """What follows from the messages, by path inside schemas/."""
    files = {"asyncapi.json": _bytes(document())}
    for message in MESSAGES:
        files[f"json/{file_name(message.name)}"] = _bytes(schema_of(message))
    return files


def drift(root: Path) -> list[str]:
    """Paths inside ``root`` that are missing, different, or left over."""
    wanted = generated()
    found = {f"json/{path.name}" for path in (root / "json").glob("*")}
    left_over = found - wanted.keys()
    wrong = {path for path, data in wanted.items() if _read(root / path) != data}
    return sorted(wrong | left_over)


def write(root: Path) -> list[str]:
    """Make ``root`` hold what follows from the messages; returns what changed."""
    wanted = generated()
    changed = drift(root)
    (root / "json").mkdir(parents=True, exist_ok=True)
    for path in changed:
        if path in wanted:
            (root / path).write_bytes(wanted[path])
        else:
            (root / path).unlink()
    return changed


def _bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
