"""The programs of a control plane and Kueue's manager, compiled once and cached.

The first compilation takes about 17 minutes on two cores, later ones no time (compiling.py).

    python -m berthmaster.lab.controlplane.build
        builds missing programs, and the kubelet too on a machine that can run one
    python -m berthmaster.lab.controlplane.build kubelet
        builds the kubelet alone, which takes root and containerd to run: 5 minutes more
    python -m berthmaster.lab.controlplane.build NAME…
        builds other projects of projects.py alone
    python -m berthmaster.lab.controlplane.build [NAME…] -- COMMAND…
        builds missing programs, or those projects alone, then runs COMMAND; if a build is
        impossible, COMMAND runs too, with the reason in BERTH_CONTROLPLANE_MISSING (if that
        is set beforehand, nothing is built)

KUBEBUILDER_ASSETS names a folder with ready programs. Programs missing in the folder are compiled.
KUEUE_BIN and KUEUE_CRDS do the same for Kueue. BERTH_KUBERNETES chooses another version with a
module beside this file, such as 1.35.4. With BERTH_ALL (`scripts/test --all`) all projects of
projects.py are built too, each in some minutes.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berthmaster.lab.controlplane.compiling import (
    KUBERNETES,
    KUBERNETES_VERSION,
    MISSING,
    BuildFailed,
    Sources,
    Tell,
    Unavailable,
    built,
    find_go,
    folder_of,
    given,
    kubernetes_version,
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


def sources_of(version: str) -> Sources:
    """Return the programs of a Kubernetes version, from the smallest to the largest, with programs
    that share packages next to each other.
    """
    module = KUBERNETES[version]
    return {
        "etcd": (module, "go.etcd.io/etcd/server/v3"),
        "kube-apiserver": (module, "k8s.io/kubernetes/cmd/kube-apiserver"),
        "kube-controller-manager": (module, "k8s.io/kubernetes/cmd/kube-controller-manager"),
        "kube-scheduler": (module, "k8s.io/kubernetes/cmd/kube-scheduler"),
        "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    }


SOURCES: Final = sources_of(KUBERNETES_VERSION)
MODULES: Final = tuple(dict.fromkeys(module for module, _ in SOURCES.values()))
# Has its own module and cache folder, so that only root waits for the kubelet.
KUBELET: Final[Sources] = {
    "kubelet": ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
}
NODE_PROGRAMS: Final = ("containerd", "runc", "ctr", "gcc")
EVERYTHING: Final = "BERTH_ALL"
_CANNOT: Final = 75  # EX_TEMPFAIL: the machine lacks something, the sources are fine


@dataclass(frozen=True)
class Programs:
    """The path of each program."""

    kubernetes: str  # version, such as 1.36.3
    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kwok: Path
    kueue: Path
    kueue_definitions: Path  # a folder


def find(environment: Mapping[str, str] = os.environ) -> Programs:
    """Return the programs without building. Raises Unavailable with the missing programs and a
    remedy."""
    if reason := environment.get(MISSING):
        raise Unavailable(reason)
    version = kubernetes_version(environment)
    sources = sources_of(version)
    paths = present(folder_of(sources, environment), sources) | given(environment, sources)
    if lacking := [name for name in sources if name not in paths]:
        hint = f"not built yet: {', '.join(lacking)}; `{BUILD_COMMAND}` does it in about 13 minutes"
        raise Unavailable(hint if find_go(environment) else no_go(lacking))
    return _programs(version, paths, find_project(KUEUE, environment))


def _programs(version: str, paths: Mapping[str, Path], kueue: Found) -> Programs:
    assert kueue.definitions is not None
    return Programs(
        kubernetes=version,
        **{name.replace("-", "_"): paths[name] for name in SOURCES},
        kueue=kueue.program("kueue"),
        kueue_definitions=kueue.definitions,
    )


def find_kubelet(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the kubelet without building. Raises Unavailable with a remedy."""
    if kubernetes_version(environment) != KUBERNETES_VERSION:
        raise Unavailable(f"the kubelet is built for Kubernetes {KUBERNETES_VERSION} alone")
    found = present(folder_of(KUBELET, environment), KUBELET) | given(environment, KUBELET)
    if "kubelet" not in found:
        raise Unavailable(f"not built yet: kubelet; `{BUILD_COMMAND} kubelet` does it in 5 minutes")
    return found["kubelet"]


def cannot_run_a_kubelet(environment: Mapping[str, str] = os.environ) -> str:
    """Return the requirement that this machine lacks to run a kubelet; "" = none."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    path = environment.get("PATH")
    lacking = [name for name in NODE_PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        return f"no {', '.join(lacking)} here (Debian: apt install containerd runc gcc)"
    return ""


def build(environment: Mapping[str, str] = os.environ, tell: Tell = say_programs) -> Programs:
    """Return the programs, and build missing ones. Raises Unavailable and BuildFailed."""
    version = kubernetes_version(environment)
    paths = built(sources_of(version), environment, tell)
    return _programs(version, paths, build_project(KUEUE, environment, tell))


def build_kubelet(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the kubelet, and build it if missing. Raises Unavailable and BuildFailed."""
    return built(KUBELET, environment)["kubelet"]


def _folder_of(name: str) -> Path:
    """Build a program or a project by name, and return its folder. Raises Unavailable and
    BuildFailed."""
    return build_kubelet().parent if name == "kubelet" else build_project(PROJECTS[name]).programs


def main(argv: list[str]) -> int:
    """Build, then exec the command if there is one."""
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
        is_default = kubernetes_version(os.environ) == KUBERNETES_VERSION
        with_kubelet = whole and is_default and (not command or os.environ.get(EVERYTHING))
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
