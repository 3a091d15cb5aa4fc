"""Programs compiled from Go modules and cached.

A module is a folder beside this file with a go.mod and a go.sum. The name of a cache folder
includes every input of the build: both files, the packages and the flags. A program gets its name
only after its build, and one build at a time holds the lock. So a killed build leaves no file that
looks like a program.

BERTH_CACHE sets the cache folder, by default ~/.cache/berthmaster.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from berthmaster.lib.runtime.process_setup import end_with_parent

HERE: Final = Path(__file__).resolve().parent
# Kubernetes version -> its module's folder. The first is the default. A test compares with go.mod.
KUBERNETES: Final[Mapping[str, str]] = {"1.36.3": "kubernetes", "1.35.4": "kubernetes-1.35"}
KUBERNETES_VERSION: Final = next(iter(KUBERNETES))
KUBERNETES_VARIABLE: Final = "BERTH_KUBERNETES"
_STAMP: Final = "k8s.io/component-base/version"


def ld_flags(version: str) -> str:
    """Return the linker's flags. The stamp makes a program report its version at /version; without
    a stamp, the version is v0.0.0.
    """
    major, minor, _ = version.split(".")
    return (
        f"-s -w -X {_STAMP}.gitVersion=v{version}"
        f" -X {_STAMP}.gitMajor={major} -X {_STAMP}.gitMinor={minor}"
    )


FLAGS: Final = ("-trimpath", "-buildvcs=false", "-ldflags", ld_flags(KUBERNETES_VERSION))
COMPILERS: Final = "2"  # a gigabyte each at times, and users work on the machine meanwhile
Sources = Mapping[str, tuple[str, str]]  # program -> its module's folder and its package
ONE_BUILD_LIMIT_S: Final = 3600.0
LOCK_LIMIT_S: Final = 2 * 3600.0
MISSING: Final = "BERTH_CONTROLPLANE_MISSING"
_LOCK_POLL_S: Final = 0.2
_LAST_LINES: Final = 60  # of the output of a failed build
_UNFINISHED: Final = ".unfinished-"


@dataclass(frozen=True, kw_only=True)
class Compiling:
    """The progress of one program's compilation."""

    program: str
    number: int  # number of this program among the missing ones, from 1
    programs: int  # number of missing programs
    done: int = 0  # number of compiled packages
    packages: int = 0  # number of packages to compile; 0 = not counted yet
    took_s: float | None = None  # None = the program is not complete


Tell = Callable[[Compiling], None]


class Unavailable(Exception):
    """No control plane exists here, and none can be built. The text names the missing
    requirement."""


class BuildFailed(Exception):
    """Go ran without producing a program. The text is Go's output."""


def cache_root(environment: Mapping[str, str]) -> Path:
    """Return the cache folder."""
    if own := environment.get("BERTH_CACHE"):
        return Path(own) / "controlplane"
    usual = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return usual / "berthmaster" / "controlplane"


def kubernetes_version(environment: Mapping[str, str]) -> str:
    """Return the Kubernetes version of the control plane. Raises ValueError if unknown."""
    version = environment.get(KUBERNETES_VARIABLE) or KUBERNETES_VERSION
    if version not in KUBERNETES:
        known = ", ".join(KUBERNETES)
        raise ValueError(f"{KUBERNETES_VARIABLE} is {version!r}; right is one of {known}")
    return version


def _flags_of(module: str) -> tuple[str, ...]:
    for version, folder in KUBERNETES.items():
        if module == folder and version != KUBERNETES_VERSION:
            return (*FLAGS[:-1], ld_flags(version))
    return FLAGS


def cache_key(programs: Sources, modules: Path = HERE) -> str:
    """Return a key that changes with every input of the build."""
    folders = tuple(dict.fromkeys(module for module, _ in programs.values()))
    digest = hashlib.sha256(repr((_flags_of(folders[0]), dict(programs))).encode())
    for module in folders:
        for name in ("go.mod", "go.sum"):
            digest.update((modules / module / name).read_bytes())
    return digest.hexdigest()[:16]


def given(environment: Mapping[str, str], programs: Sources) -> dict[str, Path]:
    """Return the programs in KUBEBUILDER_ASSETS. Raises Unavailable if that is no folder."""
    folder = environment.get("KUBEBUILDER_ASSETS")
    if not folder:
        return {}
    if not Path(folder).is_dir():
        raise Unavailable(f"KUBEBUILDER_ASSETS names {folder!r}, which is no folder")
    return present(Path(folder), programs)


def folder_of(programs: Sources, environment: Mapping[str, str]) -> Path:
    """Return the cache folder of these programs, whether it exists or not."""
    return cache_root(environment) / cache_key(programs)


def say_programs(step: Compiling) -> None:
    """Write a line when a program begins and when it is complete."""
    if step.took_s is not None:
        took = f"{step.took_s:.0f} s ({step.number} of {step.programs})"
        say(f"{step.program} done in {took}")
    elif not step.packages:
        say(f"compiling {step.program}")


def built(
    programs: Sources, environment: Mapping[str, str], tell: Tell = say_programs
) -> dict[str, Path]:
    """Return the path of each program, after compiling missing ones.

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
            # Checks again, because another process may have compiled some.
            _build_missing(wanted, folder, environment, tell)
    return present(folder, programs) | assets


def _build_missing(
    wanted: Sources, folder: Path, environment: Mapping[str, str], tell: Tell
) -> None:
    missing = [name for name in wanted if name not in present(folder, wanted)]
    if not missing:
        return
    for left_over in folder.glob(f"{_UNFINISHED}*"):
        left_over.unlink()  # from a killed build; the lock excludes other builds
    go = find_go(environment)
    if go is None:
        raise Unavailable(no_go(missing))
    for number, name in enumerate(missing, 1):
        started_s = time.monotonic()
        step = Compiling(program=name, number=number, programs=len(missing))
        tell(step)
        _compile(go, step, wanted[name], folder, environment, tell)
        tell(replace(step, took_s=time.monotonic() - started_s))


def find_go(environment: Mapping[str, str]) -> str | None:
    return shutil.which("go", path=environment.get("PATH"))


def no_go(missing: list[str]) -> str:
    return (
        f"no {', '.join(missing)} here and no Go to compile it with: install Go 1.26 or newer, "
        "or let KUBEBUILDER_ASSETS name a folder that has it"
    )


def _compile(
    go: str,
    step: Compiling,
    source: tuple[str, str],
    folder: Path,
    environment: Mapping[str, str],
    tell: Tell,
) -> None:
    name, (module, package) = step.program, source
    unfinished = folder / f"{_UNFINISHED}{name}"
    # -v names each package after its compilation.
    argv = ["build", "-v", "-p", COMPILERS, *_flags_of(module), "-o", str(unfinished), package]
    deadline_s = time.monotonic() + ONE_BUILD_LIMIT_S
    try:
        stale = _stale_packages(go, module, package, environment, deadline_s)
        step = replace(step, packages=len(stale))
        process = _start_go(go, argv, module, environment)
        said: deque[str] = deque(maxlen=_LAST_LINES)
        with process, _killed_at(deadline_s, process):
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() in stale:
                    step = replace(step, done=min(step.done + 1, step.packages))
                    tell(step)
                else:
                    said.append(line)
        if time.monotonic() > deadline_s:
            raise BuildFailed(f"{name}: not compiled after {ONE_BUILD_LIMIT_S:.0f} s")
        if process.returncode:
            raise BuildFailed(f"{name}: go build says: {''.join(said).strip()[-4000:]}")
        unfinished.replace(folder / name)
    finally:
        unfinished.unlink(missing_ok=True)


def _stale_packages(
    go: str, module: str, package: str, environment: Mapping[str, str], deadline_s: float
) -> set[str]:
    """Return the packages that a build compiles, because Go's own cache lacks them.

    Downloads the modules. Returns an empty set if Go cannot list them: the build reports the
    reason.
    """
    shown = "{{if .Stale}}{{.ImportPath}}{{end}}"
    process = _start_go(
        go, ["list", "-deps", "-f", shown, *_flags_of(module), package], module, environment
    )
    with process, _killed_at(deadline_s, process):
        assert process.stdout is not None
        lines = [line.strip() for line in process.stdout]
    return {line for line in lines if line and " " not in line}  # without "go: downloading …"


def _start_go(
    go: str, argv: list[str], module: str, environment: Mapping[str, str]
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [go, *argv],
        cwd=HERE / module,
        env={**environment, "GOFLAGS": "-mod=readonly", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_nicely_and_not_alone(),  # noqa: PLW1509 # takes no lock
    )


@contextmanager
def _killed_at(deadline_s: float, process: "subprocess.Popen[str]") -> Iterator[None]:
    """Kill a process after the deadline, or when the block fails."""
    timer = threading.Timer(max(0.0, deadline_s - time.monotonic()), process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        timer.cancel()


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
    """Hold the lock; the kernel releases it if this process dies."""
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
