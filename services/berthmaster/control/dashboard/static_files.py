"""The page's own files, read and compressed once at the start, with tags from their content."""

import gzip
import hashlib
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).with_name("static")
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    kind: str
    plain: bytes
    packed: bytes  # gzip
    tag: str  # changes with its content


def read_all(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """Return every file by its path in the folder, with slashes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in KINDS:
            plain = path.read_bytes()
            tag = f'"{hashlib.sha256(plain).hexdigest()[:20]}"'
            packed = gzip.compress(plain, 9, mtime=0)
            name = path.relative_to(folder).as_posix()
            found[name] = StaticFile(KINDS[path.suffix], plain, packed, tag)
    return found
