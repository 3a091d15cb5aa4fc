"""Programs compiled from Go modules and kept in a cache.

A module is a folder beside this file with a go.mod and a go.sum. A folder of the cache is named by
all that decides what comes out: both files, the packages and the flags. A program gets its name
only when it is complete, and one build at a time holds the lock. A killed build leaves nothing that
the next one could mistake for a program.

BERTH_CACHE moves the cache, which is ~/.cache/berthmaster otherwise.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from berthmaster.lib.runtime.process_setup import end_with_parent

HERE: Final = Path(__file__).resolve().parent
KUBERNETES_VERSION: Final = "1.36.3"  # go.mod names it too; a test compares them
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.split(".")
_STAMP: Final = "k8s.io/component-base/version"
# A program that knows its version says so at /version; without the stamp it calls itself v0.0.0.
LD_FLAGS: Final = (
    f"-s -w -X {_STAMP}.gitVersion=v{KUBERNETES_VERSION}"
    f" -X {_STAMP}.gitMajor={_MAJOR} -X {_STAMP}.gitMinor={_MINOR}"
)
FLAGS: Final = ("-trimpath", "-buildvcs=false", "-ldflags", LD_FLAGS)
COMPILERS: Final = "2"  # a gigabyte each at times, and people work on the machine meanwhile
Sources = Mapping[str, tuple[str, str]]  # program -> its module's folder and its package
ONE_BUILD_LIMIT_S: Final = 3600.0
LOCK_LIMIT_S: Final = 2 * 3600.0
MISSING: Final = "BERTH_CONTROLPLANE_MISSING"
_LOCK_POLL_S: Final = 0.2
_UNFINISHED: Final = ".unfinished-"


class Unavailable(Exception):
    """There is no control plane here and none can be made; the text says what is missing."""


class BuildFailed(Exception):
    """Go was there and did not produce a program; the text is what it said."""


def cache_root(environment: Mapping[str, str]) -> Path:
    """Where programs are kept from run to run."""
    if own := environment.get("BERTH_CACHE"):
        return Path(own) / "controlplane"
    usual = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return usual / "berthmaster" / "controlplane"


def cache_key(programs: Sources, modules: Path = HERE) -> str:
    """Changes whenever something else would come out of the build."""
    digest = hashlib.sha256(repr((FLAGS, dict(programs))).encode())
    for module in dict.fromkeys(module for module, _ in programs.values()):
        for name in ("go.mod", "go.sum"):
            digest.update((modules / module / name).read_bytes())
    return digest.hexdigest()[:16]


def given(environment: Mapping[str, str], programs: Sources) -> dict[str, Path]:
    """The programs that KUBEBUILDER_ASSETS has. Raises Unavailable if it names no folder."""
    folder = environment.get("KUBEBUILDER_ASSETS")
    if not folder:
        return {}
    if not Path(folder).is_dir():
        raise Unavailable(f"KUBEBUILDER_ASSETS names {folder!r}, which is no folder")
    return present(Path(folder), programs)


def folder_of(programs: Sources, environment: Mapping[str, str]) -> Path:
    """Return the folder of the cache that keeps these programs, whether it exists or not."""
    return cache_root(environment) / cache_key(programs)


def built(programs: Sources, environment: Mapping[str, str]) -> dict[str, Path]:
    """Return the path of each program, after compiling those that the cache lacks.

    Raises Unavailable and BuildFailed.
    """
    if reason := environment.get(MISSING):
        raise Unavailable(reason)
    assets = given(environment, programs)
    folder = folder_of(programs, environment)
    wanted = {name: source for name, source in programs.items() if name not in assets}
    if assets:
        say(f"KUBEBUILDER_ASSETS gives {', '.join(assets)}")
    if wanted.keys() - present(folder, wanted).keys():
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder / "lock"):
            _build_missing(wanted, folder, environment)  # looks again: another may have done it
    return present(folder, programs) | assets


def _build_missing(wanted: Sources, folder: Path, environment: Mapping[str, str]) -> None:
    missing = [name for name in wanted if name not in present(folder, wanted)]
    if not missing:
        return
    for left_over in folder.glob(f"{_UNFINISHED}*"):
        left_over.unlink()  # of a build that was killed; whoever holds the lock is alone
    go = find_go(environment)
    if go is None:
        raise Unavailable(no_go(missing))
    say(f"compiling {', '.join(missing)}")
    for number, name in enumerate(missing, 1):
        started_s = time.monotonic()
        _compile(go, name, wanted[name], folder, environment)
        took_s = time.monotonic() - started_s
        say(f"{name} done in {took_s:.0f} s ({number} of {len(missing)})")


def find_go(environment: Mapping[str, str]) -> str | None:
    return shutil.which("go", path=environment.get("PATH"))


def no_go(missing: list[str]) -> str:
    return (
        f"no {', '.join(missing)} here and no Go to compile it with: install Go 1.26 or newer, "
        "or let KUBEBUILDER_ASSETS name a folder that has it"
    )


def _compile(
    go: str, name: str, source: tuple[str, str], folder: Path, environment: Mapping[str, str]
) -> None:
    module, package = source
    unfinished = folder / f"{_UNFINISHED}{name}"
    argv = [go, "build", "-p", COMPILERS, *FLAGS, "-o", str(unfinished), package]
    try:
        done = subprocess.run(
            argv,
            cwd=HERE / module,
            env={**environment, "GOFLAGS": "-mod=readonly", "GOWORK": "off"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ONE_BUILD_LIMIT_S,
            check=False,
            preexec_fn=_nicely_and_not_alone(),  # takes no lock
        )
        if done.returncode:
            raise BuildFailed(f"{name}: go build says: {done.stdout.strip()[-4000:]}")
        unfinished.replace(folder / name)
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{name}: not compiled after {ONE_BUILD_LIMIT_S:.0f} s") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _nicely_and_not_alone() -> Callable[[], None]:
    bind = end_with_parent()

    def between_fork_and_exec() -> None:
        bind()
        os.nice(5)

    return between_fork_and_exec


def present(folder: Path, programs: Sources) -> dict[str, Path]:
    return {name: folder / name for name in programs if os.access(folder / name, os.X_OK)}


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold the lock; the kernel gives it back whatever ends us."""
    deadline_s = time.monotonic() + LOCK_LIMIT_S
    told = False
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise BuildFailed(
                        f"another build held {path} for {LOCK_LIMIT_S:.0f} s"
                    ) from None
                if not told:
                    say("another build is at it; waiting for it")
                    told = True
                time.sleep(_LOCK_POLL_S)
        yield


def say(text: str) -> None:
    sys.stderr.write(f"controlplane: {text}\n")
    sys.stderr.flush()
