"""The programs of a control plane and Kueue's manager, compiled once and kept in a cache.

Compiling takes some 17 minutes on two cores and nothing afterwards (compiling.py).

    python -m berthmaster.lab.controlplane.build
        builds what is missing, and the kubelet too where it can be run
    python -m berthmaster.lab.controlplane.build kubelet
        builds the kubelet alone, which takes root and containerd to run: 5 minutes more
    python -m berthmaster.lab.controlplane.build NAME…
        builds other projects of projects.py alone
    python -m berthmaster.lab.controlplane.build [NAME…] -- COMMAND…
        builds what is missing, or those projects alone, then runs COMMAND; where nothing can be
        built it runs too, the reason in BERTH_CONTROLPLANE_MISSING (set beforehand, nothing is
        built and that is the reason)

KUBEBUILDER_ASSETS names a folder whose programs are taken instead; what it lacks is compiled.
KUEUE_BIN and KUEUE_CRDS do the same for Kueue. With BERTH_ALL (`scripts/test --all`) all projects
of projects.py are built too, each in some minutes.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berthmaster.lab.controlplane.compiling import (
    MISSING,
    BuildFailed,
    Sources,
    Tell,
    Unavailable,
    built,
    find_go,
    folder_of,
    given,
    no_go,
    present,
    say,
    say_programs,
)
from berthmaster.lab.controlplane.projects import (
    BUILD_COMMAND,
    HELM,
    KUEUE,
    PROJECTS,
    Found,
    build_project,
    find_project,
)

# From the smallest to the largest, those that share packages one after the other.
SOURCES: Final[Sources] = {
    "etcd": ("kubernetes", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
}
MODULES: Final = tuple(dict.fromkeys(module for module, _ in SOURCES.values()))
# Has a module and a folder in the cache of its own, so that nobody waits for it who is not root.
KUBELET: Final[Sources] = {
    "kubelet": ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
}
NODE_PROGRAMS: Final = ("containerd", "runc", "ctr", "gcc")
EVERYTHING: Final = "BERTH_ALL"
_CANNOT: Final = 75  # EX_TEMPFAIL: not an error of the sources, the machine lacks something


@dataclass(frozen=True)
class Programs:
    """Where each program is."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kwok: Path
    kueue: Path
    kueue_definitions: Path  # a folder


def find(environment: Mapping[str, str] = os.environ) -> Programs:
    """The programs, without building. Raises Unavailable, naming what is missing and what to do."""
    if reason := environment.get(MISSING):
        raise Unavailable(reason)
    paths = present(folder_of(SOURCES, environment), SOURCES) | given(environment, SOURCES)
    if lacking := [name for name in SOURCES if name not in paths]:
        hint = f"not built yet: {', '.join(lacking)}; `{BUILD_COMMAND}` does it in about 13 minutes"
        raise Unavailable(hint if find_go(environment) else no_go(lacking))
    return _programs(paths, find_project(KUEUE, environment))


def _programs(paths: Mapping[str, Path], kueue: Found) -> Programs:
    assert kueue.definitions is not None
    return Programs(
        **{name.replace("-", "_"): paths[name] for name in SOURCES},
        kueue=kueue.program("kueue"),
        kueue_definitions=kueue.definitions,
    )


def find_kubelet(environment: Mapping[str, str] = os.environ) -> Path:
    """The kubelet, without building. Raises Unavailable, saying what to do."""
    found = present(folder_of(KUBELET, environment), KUBELET) | given(environment, KUBELET)
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


def build(environment: Mapping[str, str] = os.environ, tell: Tell = say_programs) -> Programs:
    """The programs, after building what is missing. Raises Unavailable and BuildFailed."""
    paths = built(SOURCES, environment, tell)
    return _programs(paths, build_project(KUEUE, environment, tell))


def build_kubelet(environment: Mapping[str, str] = os.environ) -> Path:
    """The kubelet, built if need be. Raises Unavailable and BuildFailed."""
    return built(KUBELET, environment)["kubelet"]


def _folder_of(name: str) -> Path:
    """Build a program or a project by its name. Raises Unavailable and BuildFailed."""
    return build_kubelet().parent if name == "kubelet" else build_project(PROJECTS[name]).programs


def main(argv: list[str]) -> int:
    """Build, then become the command if there is one."""
    cut = argv.index("--") if "--" in argv else len(argv)
    names, command = argv[:cut], argv[cut + 1 :]
    if unknown := [name for name in names if name not in (*PROJECTS, "kubelet")]:
        known = " | ".join(("kubelet", *PROJECTS))
        say(f"no program {unknown[0]!r}; right is {BUILD_COMMAND} [{known}]… [-- COMMAND…]")
        return 2
    whole = not names
    try:
        folders = [build().kube_apiserver.parent, build_project(HELM).programs] if whole else []
        if whole and os.environ.get(EVERYTHING):
            names = list(PROJECTS)
        folders += [_folder_of(name) for name in names]
        with_kubelet = whole and (not command or os.environ.get(EVERYTHING))
        if with_kubelet and not cannot_run_a_kubelet():
            build_kubelet()
    except Unavailable as reason:
        say(f"none: {reason}")
        if not command:
            return _CANNOT
        os.environ[MISSING] = str(reason)
    except (BuildFailed, ValueError) as error:
        say(str(error))
        return 1
    else:
        say(f"ready in {', '.join(map(str, folders))}")
    if command:
        os.execvp(command[0], command)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
