"""The programs of a control plane, compiled once from their Go modules and kept in a cache.

Compiling takes some 13 minutes on two cores and nothing afterwards, so the cache's folder is named
by all that decides what comes out (both go.mod and go.sum, the flags). A program gets its name only
when it is complete, and one build at a time holds the lock: a killed build leaves nothing that the
next one could mistake for a program.

    python -m tests.controlplane.build
        builds what is missing, and the kubelet too where it can be run
    python -m tests.controlplane.build kubelet
        builds the kubelet alone, which takes root and containerd to run: 5 minutes more
    python -m tests.controlplane.build -- COMMAND…
        the same, then runs COMMAND; where nothing can be built it runs too, the reason in
        BERTH_CONTROLPLANE_MISSING (set beforehand, nothing is built and that is the reason)

KUBEBUILDER_ASSETS names a folder whose programs are taken instead; what it lacks is compiled.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berthmaster.runtime.children import dying_with_this_process

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
# From the smallest to the largest, those that share packages one after the other.
SOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "etcd": ("kubernetes", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
}
# Has a module and a folder in the cache of its own, so that nobody waits for it who is not root.
MODULES: Final = tuple(dict.fromkeys(module for module, _ in SOURCES.values()))
KUBELET: Final[Mapping[str, tuple[str, str]]] = {
    "kubelet": ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
}
NODE_PROGRAMS: Final = ("containerd", "runc", "ctr", "gcc")
ONE_BUILD_LIMIT_S: Final = 3600.0
LOCK_LIMIT_S: Final = 2 * 3600.0
MISSING: Final = "BERTH_CONTROLPLANE_MISSING"
BUILD_COMMAND: Final = "python -m tests.controlplane.build"
_LOCK_POLL_S: Final = 0.2
_UNFINISHED: Final = ".unfinished-"
_CANNOT: Final = 75  # EX_TEMPFAIL: not an error of the sources, the machine lacks something


class Unavailable(Exception):
    """There is no control plane here and none can be made; the text says what is missing."""


class BuildFailed(Exception):
    """Go was there and did not produce a program; the text is what it said."""


@dataclass(frozen=True)
class Programs:
    """Where each program is."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kwok: Path

    @classmethod
    def of(cls, paths: Mapping[str, Path]) -> "Programs":
        """From paths by program name; every program must be there."""
        return cls(**{name.replace("-", "_"): paths[name] for name in SOURCES})


def cache_root(environment: Mapping[str, str]) -> Path:
    """Where programs are kept from run to run."""
    if own := environment.get("BERTH_CACHE"):
        return Path(own) / "controlplane"
    usual = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return usual / "berthmaster" / "controlplane"


def cache_key(sources: Path = HERE, programs: Mapping[str, tuple[str, str]] = SOURCES) -> str:
    """Changes whenever something else would come out of the build."""
    digest = hashlib.sha256(repr((FLAGS, dict(programs))).encode())
    for module in dict.fromkeys(module for module, _ in programs.values()):
        for name in ("go.mod", "go.sum"):
            digest.update((sources / module / name).read_bytes())
    return digest.hexdigest()[:16]


def given(
    environment: Mapping[str, str], programs: Mapping[str, tuple[str, str]] = SOURCES
) -> dict[str, Path]:
    """The programs that KUBEBUILDER_ASSETS has. Raises Unavailable if it names no folder."""
    folder = environment.get("KUBEBUILDER_ASSETS")
    if not folder:
        return {}
    if not Path(folder).is_dir():
        raise Unavailable(f"KUBEBUILDER_ASSETS names {folder!r}, which is no folder")
    return _present(Path(folder), programs)


def find(environment: Mapping[str, str] = os.environ) -> Programs:
    """The programs, without building. Raises Unavailable, naming what is missing and what to do."""
    if reason := environment.get(MISSING):
        raise Unavailable(reason)
    paths = _present(cache_root(environment) / cache_key(), SOURCES) | given(environment)
    if lacking := [name for name in SOURCES if name not in paths]:
        hint = f"not built yet: {', '.join(lacking)}; `{BUILD_COMMAND}` does it in about 13 minutes"
        raise Unavailable(hint if _find_go(environment) else _no_go(lacking))
    return Programs.of(paths)


def find_kubelet(environment: Mapping[str, str] = os.environ) -> Path:
    """The kubelet, without building. Raises Unavailable, saying what to do."""
    folder = cache_root(environment) / cache_key(programs=KUBELET)
    found = _present(folder, KUBELET) | given(environment, KUBELET)
    if "kubelet" not in found:
        raise Unavailable(f"not built yet: kubelet; `{BUILD_COMMAND} kubelet` does it in 5 minutes")
    return found["kubelet"]


def cannot_run_a_kubelet(environment: Mapping[str, str] = os.environ) -> str:
    """What this machine lacks to run one; "" = nothing."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    path = environment.get("PATH")
    lacking = [name for name in NODE_PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        return f"no {', '.join(lacking)} here (Debian: apt install containerd runc gcc)"
    return ""


def build(environment: Mapping[str, str] = os.environ) -> Programs:
    """The programs, after building what is missing. Raises Unavailable and BuildFailed."""
    return Programs.of(_built(SOURCES, environment))


def build_kubelet(environment: Mapping[str, str] = os.environ) -> Path:
    """The kubelet, built if need be. Raises Unavailable and BuildFailed."""
    return _built(KUBELET, environment)["kubelet"]


def _built(
    programs: Mapping[str, tuple[str, str]], environment: Mapping[str, str]
) -> dict[str, Path]:
    if reason := environment.get(MISSING):
        raise Unavailable(reason)
    assets = given(environment, programs)
    folder = cache_root(environment) / cache_key(programs=programs)
    wanted = {name: source for name, source in programs.items() if name not in assets}
    if assets:
        _say(f"KUBEBUILDER_ASSETS gives {', '.join(assets)}")
    if wanted.keys() - _present(folder, wanted).keys():
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder / "lock"):
            _build_missing(wanted, folder, environment)  # looks again: another may have done it
    return _present(folder, programs) | assets


def _build_missing(
    wanted: Mapping[str, tuple[str, str]], folder: Path, environment: Mapping[str, str]
) -> None:
    missing = [name for name in wanted if name not in _present(folder, wanted)]
    if not missing:
        return
    for left_over in folder.glob(f"{_UNFINISHED}*"):
        left_over.unlink()  # of a build that was killed; whoever holds the lock is alone
    go = _find_go(environment)
    if go is None:
        raise Unavailable(_no_go(missing))
    _say(f"compiling {', '.join(missing)}; all of it takes about 13 minutes on two cores")
    for number, name in enumerate(missing, 1):
        started_s = time.monotonic()
        _compile(go, name, wanted[name], folder, environment)
        took_s = time.monotonic() - started_s
        _say(f"{name} done in {took_s:.0f} s ({number} of {len(missing)})")


def _find_go(environment: Mapping[str, str]) -> str | None:
    return shutil.which("go", path=environment.get("PATH"))


def _no_go(missing: list[str]) -> str:
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
    bind = dying_with_this_process()

    def between_fork_and_exec() -> None:
        bind()
        os.nice(5)

    return between_fork_and_exec


def _present(folder: Path, programs: Mapping[str, tuple[str, str]]) -> dict[str, Path]:
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
                    _say("another build is at it; waiting for it")
                    told = True
                time.sleep(_LOCK_POLL_S)
        yield


def _say(text: str) -> None:
    print(f"controlplane: {text}", file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    """Build, then become the command if there is one."""
    command = argv[1:] if argv[:1] == ["--"] else []
    kubelet = argv == ["kubelet"]
    if argv and not command and not kubelet:
        print(f"usage: {BUILD_COMMAND} [kubelet | -- COMMAND…]", file=sys.stderr)
        return 2
    try:
        folder = build_kubelet().parent if kubelet else build().kube_apiserver.parent
        if not argv and not cannot_run_a_kubelet():
            build_kubelet()
    except Unavailable as reason:
        _say(f"none: {reason}")
        if not command:
            return _CANNOT
        os.environ[MISSING] = str(reason)
    except BuildFailed as error:
        _say(str(error))
        return 1
    else:
        _say(f"ready in {folder}")
    if command:
        os.execvp(command[0], command)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
