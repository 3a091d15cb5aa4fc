"""The files in schemas/: what they should hold, what differs, and what was published before.

schemas/asyncapi.json and schemas/json/ follow the messages. schemas/published.json is the
generation that readers out there may rely on; it changes only when somebody publishes.
"""

import json
from pathlib import Path
from typing import Any, Final

from scripts.schema_tools.asyncapi import document
from scripts.schema_tools.breaking import Break, Published, contract_breaks
from scripts.schema_tools.json_schema import MESSAGES, Role, Schema, file_name, schema_of

PUBLISHED: Final = "published.json"
_WORDS: Final = frozenset({"$schema", "$id", "description"})  # for people: they break no reader


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


def current() -> dict[str, Published]:
    """This generation, as a reader knows it."""
    return {m.name: Published(m.role, _without_words(schema_of(m))) for m in MESSAGES}


def published(root: Path) -> dict[str, Published]:
    """The generation that readers may rely on; nothing before the first is published."""
    data = _read(root / PUBLISHED)
    if data is None:
        return {}
    return {
        name: Published(Role(entry["role"]), entry["schema"])
        for name, entry in json.loads(data).items()
    }


def publish(root: Path) -> None:
    """From now on, later changes are judged by this generation."""
    entries = {
        name: {"role": known.role, "schema": known.schema} for name, known in current().items()
    }
    (root / PUBLISHED).write_bytes(_bytes(entries))


def breaks_since(root: Path) -> list[Break]:
    """What readers of the published generation would stumble over."""
    return contract_breaks(published(root), current())


def _without_words(schema: Schema) -> Schema:
    """Only what decides whether a message is read."""
    return {
        key: _without_words_deep(key, value) for key, value in schema.items() if key not in _WORDS
    }


def _without_words_deep(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):  # names of ours, not words of the schema language
        return {name: _without_words(inner) for name, inner in value.items()}
    if key in ("default", "const", "enum"):
        return value
    if isinstance(value, dict):
        return _without_words(value)
    if isinstance(value, list):
        return [_without_words(v) if isinstance(v, dict) else v for v in value]
    return value


def _bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
