"""A confined process does not see what is hidden, whatever it tries; what stands beside it does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from berthmaster.runtime.confinement import Confinement, version
from tests.support.patience import hang_s

pytestmark = pytest.mark.skipif(not version(), reason="this kernel has no Landlock")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("data/keys/mine", "data/keys/others", "data/logs", "beside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    return tmp_path


def run(confinement: Confinement, code: str, *argv: object) -> str:
    """What it prints: an answer, or the name of the error."""
    told = f"import os, sys\ntry:\n    print({code})\nexcept OSError as error:\n"
    told += "    print(type(error).__name__, error.errno)"
    with confinement.prepared() as confine:
        done = subprocess.run(
            [sys.executable, "-c", told, *map(str, argv)],
            preexec_fn=confine,
            capture_output=True,
            text=True,
            check=True,
            timeout=hang_s(),
        )
    return done.stdout.strip()


READ = "open(sys.argv[1]).read()"
DENIED = "PermissionError 13"


def test_what_is_hidden_is_neither_read_nor_written_nor_removed(folder: Path) -> None:
    confined = Confinement((folder / "data",), (folder / "data/keys/mine",))
    secret = folder / "data/keys/others/file"
    for way in (secret, folder / "link/keys/others/file", f"/proc/self/root{secret}"):
        assert run(confined, READ, way) == DENIED
    assert run(confined, READ, folder / "data/logs/file") == DENIED
    assert run(confined, "open(sys.argv[1], 'w')", secret) == DENIED
    assert run(confined, "open(sys.argv[1], 'w')", folder / "data/keys/others/new") == DENIED
    assert run(confined, "os.remove(sys.argv[1])", secret) == DENIED
    moved = run(confined, "os.rename(*sys.argv[1:])", secret, folder / "data/keys/mine/got")
    assert moved in (DENIED, "OSError 18")
    assert secret.read_text() == "data/keys/others"


def test_what_is_shown_and_what_stands_beside_is_as_ever(folder: Path) -> None:
    confined = Confinement((folder / "data",), (folder / "data/keys/mine",))
    assert run(confined, READ, folder / "data/keys/mine/file") == "data/keys/mine"
    assert run(confined, READ, folder / "beside/file") == "beside"
    fresh = "open(sys.argv[1], 'w').write('new') and open(sys.argv[1]).read()"
    for place in ("data/keys/mine/later", "beside/later"):
        assert run(confined, fresh, folder / place) == "new"
    swap = "os.replace(*sys.argv[1:]) or open(sys.argv[2]).read()"
    mine = folder / "data/keys/mine"
    assert run(confined, swap, mine / "later", mine / "file") == "new"


def test_another_process_is_no_way_in(folder: Path) -> None:
    """Of the same user, and not confined: its memory and what it sees are its own."""
    confined = Confinement((folder / "data",))
    pid = os.getpid()
    assert run(confined, READ, f"/proc/{pid}/root{folder}/data/keys/mine/file") == DENIED
    assert run(confined, "open(sys.argv[1], 'rb')", f"/proc/{pid}/mem") == DENIED


def test_what_is_to_be_shown_must_be_there(folder: Path) -> None:
    confined = Confinement((folder / "data",), (folder / "data/none",))
    with pytest.raises(FileNotFoundError), confined.prepared():
        pass
