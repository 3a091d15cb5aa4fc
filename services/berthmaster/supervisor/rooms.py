"""A room for each service of a pod: its own credentials and nobody else's.

All processes of a pod run as one user, and the supervisor has every key. A service gets a folder
with a copy of its own credentials, which follows the original, and is confined to that and to what
else it is shown (see runtime.confinement).
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from berthmaster.runtime.confinement import Confinement

ROOMS_FOLDER: Final = "rooms"


class Room:
    def __init__(self, folder: Path, source: Path, hidden: Sequence[Path]) -> None:
        self.folder = folder
        self.creds_file = folder / "user.creds"
        self._source = source
        self._hidden = tuple(hidden)
        self._shown: list[Path] = [folder]
        self._copied: tuple[int, int] | None = None

    def show(self, *paths: Path) -> Self:
        """What it needs of what is hidden. A folder that is not there is made."""
        for path in paths:
            if not path.exists():
                path.mkdir(mode=0o700, parents=True)
            self._shown.append(path)
        return self

    def refresh(self) -> None:
        """Its credentials as they are now. Raises OSError."""
        found = self._source.stat()
        if self._copied == (found.st_mtime_ns, found.st_ino):
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.folder / "user.creds.new"
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600)
        fresh.write_bytes(self._source.read_bytes())
        fresh.replace(self.creds_file)
        self._copied = (found.st_mtime_ns, found.st_ino)

    @property
    def confinement(self) -> Confinement:
        return Confinement(self._hidden, tuple(self._shown))

    @property
    def env(self) -> Mapping[str, str]:
        """Files that it makes for a moment are made in its room."""
        return {"TMPDIR": str(self.folder)}


def rooms(folder: Path, creds_files: Mapping[str, Path], hidden: Sequence[Path]) -> dict[str, Room]:
    """One for each user of the bus, with credentials; rooms of a former life go. ``hidden``: from
    all of them."""
    shutil.rmtree(folder, ignore_errors=True)
    made = {
        user: Room(folder / user, source, [*hidden, folder]) for user, source in creds_files.items()
    }
    for room in made.values():
        room.refresh()
    return made
