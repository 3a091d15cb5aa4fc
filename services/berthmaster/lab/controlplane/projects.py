"""Other projects' programs, compiled from their Go modules, with their resource definitions.

Each project has a folder beside this file whose go.mod names the version. The cache holds its
programs and a copy of its definitions, so tests need no Go. Two variables provide another version
instead: one names the programs (a folder, or a single program), the other the folder of
definitions.

    found = find_project(KUEUE)
    found.program("kueue"), found.definitions
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berthmaster.lab.controlplane.compiling import (
    HERE,
    MISSING,
    ONE_BUILD_LIMIT_S,
    BuildFailed,
    Sources,
    Tell,
    Unavailable,
    built,
    find_go,
    folder_of,
    no_go,
    present,
    say_programs,
)

BUILD_COMMAND: Final = "python -m berthmaster.lab.controlplane.build"


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project whose programs tests run."""

    name: str  # name of the project, its module's folder and its variables, in lower case
    module: str  # path of its Go module
    packages: Mapping[str, str]  # program -> package below the module's path
    definitions: str = ""  # folder of the module with its resource definitions; "" = none
    minutes: int  # minutes of compiling on two cores

    @property
    def sources(self) -> Sources:
        """Return the programs as sources for compiling."""
        return {
            name: (self.name, f"{self.module}/{package}".rstrip("/"))
            for name, package in self.packages.items()
        }

    @property
    def version(self) -> str:
        """Return the version in go.mod, without its v."""
        return version_of(self.name, self.module)

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables that provide another version."""
        prefix = self.name.upper()
        return (f"{prefix}_BIN", f"{prefix}_CRDS") if self.definitions else (f"{prefix}_BIN",)


KUEUE: Final = Project(
    name="kueue",
    module="sigs.k8s.io/kueue",
    packages={"kueue": "cmd/kueue"},
    definitions="config/components/crd/bases",
    minutes=4,
)
KARMADA: Final = Project(
    name="karmada",
    module="github.com/karmada-io/karmada",
    packages={
        "karmada-controller-manager": "cmd/controller-manager",
        "karmada-scheduler": "cmd/scheduler",
        "karmada-webhook": "cmd/webhook",
    },
    definitions="charts/karmada/_crds/bases",
    minutes=8,
)
JOBSET: Final = Project(
    name="jobset",
    module="sigs.k8s.io/jobset",
    packages={"jobset": ""},
    definitions="config/components/crd/bases",
    minutes=3,
)
HELM: Final = Project(
    name="helm",
    module="helm.sh/helm/v3",
    packages={"helm": "cmd/helm"},
    minutes=2,
)
PROJECTS: Final = {each.name: each for each in (HELM, KUEUE, JOBSET, KARMADA)}


@dataclass(frozen=True)
class Found:
    """A project on this machine."""

    project: Project
    programs: Path  # a folder, or the one program
    definitions: Path | None
    is_handed_in: bool  # True if provided by the variables

    @property
    def words(self) -> str:
        """Return the version for a summary, as in "kueue 0.19.2"."""
        name, version = self.project.name, self.project.version
        return f"{name} as handed in" if self.is_handed_in else f"{name} {version}"

    def program(self, name: str) -> Path:
        """Return the path of a program."""
        return self.programs / name if self.programs.is_dir() else self.programs


def version_of(folder: str, module: str) -> str:
    """Return the version of a module that a folder's go.mod requires, without its v."""
    text = (HERE / folder / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} v(\S+)", text, re.MULTILINE)
    assert found is not None, f"{folder}/go.mod does not require {module}"
    return found[1]


def handed_in(project: Project, environment: Mapping[str, str] = os.environ) -> Found | None:
    """Return the project of the variables, or None.

    Raises ValueError if only some variables are set, or if one names a missing file.
    """
    values = {name: environment.get(name, "") for name in project.variables}
    if not any(values.values()):
        return None
    if not all(values.values()):
        raise ValueError(f"{' and '.join(values)} go together: set both or none")
    for name, value in values.items():
        if not Path(value).exists():
            raise ValueError(f"{name} names {value!r}, which does not exist")
    programs, *definitions = map(Path, values.values())
    return Found(project, programs, definitions[0] if definitions else None, True)


def find_project(project: Project, environment: Mapping[str, str] = os.environ) -> Found:
    """Return the project without building. Raises Unavailable with a remedy."""
    if found := handed_in(project, environment):
        return found
    if reason := environment.get(MISSING):
        raise Unavailable(reason)
    found = _in_cache(project, environment)
    if not _is_complete(found):
        hint = f"`{BUILD_COMMAND} {project.name}` does it in about {project.minutes} minutes"
        missing = f"not built yet: {project.name}; {hint}"
        raise Unavailable(missing if find_go(environment) else no_go([project.name]))
    return found


def why_not(project: Project, environment: Mapping[str, str] = os.environ) -> str:
    """Return why tests of this project are skipped; "" = it is there."""
    try:
        find_project(project, environment)
    except Unavailable as reason:
        return str(reason)
    return ""


def build_project(
    project: Project, environment: Mapping[str, str] = os.environ, tell: Tell = say_programs
) -> Found:
    """Return the project, and build it if missing. Raises Unavailable and BuildFailed."""
    if found := handed_in(project, environment):
        return found
    own = {**environment, "KUBEBUILDER_ASSETS": ""}  # the variable is for the control plane only
    built(project.sources, own, tell)
    found = _in_cache(project, environment)
    if not _is_complete(found):
        _copy_definitions(found, environment)
    return found


def _in_cache(project: Project, environment: Mapping[str, str]) -> Found:
    folder = folder_of(project.sources, environment)
    definitions = folder / project.definitions if project.definitions else None
    return Found(project, folder, definitions, False)


def _is_complete(found: Found) -> bool:
    programs = present(found.programs, found.project.sources)
    has_definitions = found.definitions is None or found.definitions.is_dir()
    return len(programs) == len(found.project.sources) and has_definitions


def _copy_definitions(found: Found, environment: Mapping[str, str]) -> None:
    """Copy the definitions from the module, whose hash Go has compared with go.sum."""
    assert found.definitions is not None
    project = found.project
    go = find_go(environment)
    if go is None:
        raise Unavailable(no_go([f"definitions of {project.name}"]))
    done = subprocess.run(
        [go, "mod", "download", "-json", project.module],
        cwd=HERE / project.name,
        env={**environment, "GOFLAGS": "-mod=readonly", "GOWORK": "off"},
        capture_output=True,
        timeout=ONE_BUILD_LIMIT_S,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace")
        raise BuildFailed(f"{project.name}: go mod download says: {said[-4000:]}")
    source = Path(json.loads(done.stdout)["Dir"]) / project.definitions
    unfinished = found.programs / f".definitions-{os.getpid()}"
    try:
        shutil.copytree(source, unfinished, copy_function=shutil.copyfile)
        for folder, _, _ in os.walk(unfinished):
            Path(folder).chmod(0o755)  # Go's modules are read-only
        found.definitions.parent.mkdir(parents=True, exist_ok=True)
        if not found.definitions.is_dir():
            unfinished.rename(found.definitions)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
