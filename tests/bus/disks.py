"""A disk of its own for a test, which can be filled: a small tmpfs."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.patience import hang_s


class Disk:
    """A disk of its own, which can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def own_disk(folder: Path, size_bytes: int) -> Iterator[Disk]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=hang_s(), check=False)
    except OSError as error:
        pytest.skip(f"no disk of its own to fill: {error}")
    if done.returncode:
        pytest.skip(f"no disk of its own to fill: {done.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=hang_s())
