"""The cache of programs, with a Go that takes no time: a script that writes what it is told."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from berthmaster.lab.controlplane import build, compiling
from berthmaster.lab.controlplane.build import MODULES, SOURCES
from berthmaster.lab.controlplane.compiling import (
    HERE,
    KUBERNETES,
    KUBERNETES_VARIABLE,
    MISSING,
    BuildFailed,
    Unavailable,
    cache_key,
    folder_of,
    ld_flags,
)
from berthmaster.lab.controlplane.projects import KUEUE, PROJECTS, build_project, find_project
from tests.support.patience import hang_s, wait_until

GO = """#!/bin/sh
if [ "$1" = mod ]; then
    mkdir -p "$HOME/module/$DEFINITIONS"
    echo 'kind: CustomResourceDefinition' >"$HOME/module/$DEFINITIONS/one.yaml"
    exec printf '{"Dir": "%s"}' "$HOME/module"
fi
if [ "$1" = list ]; then
    printf 'example.org/one\\nexample.org/two\\n'
    exit
fi
echo "$*" >>"$GO_CALLS"
echo example.org/one
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n' >"$2"
chmod +x "$2"
[ -z "$GO_WAITS" ] || exec sleep "$GO_WAITS"
[ -z "$GO_FAILS" ] || { echo "undefined: x"; exit 1; }
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An empty cache, and a Go that notes its calls."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "go").write_text(GO)
    (tools / "go").chmod(0o755)
    return {
        "PATH": f"{tools}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "BERTH_CACHE": str(tmp_path / "cache"),
        "GO_CALLS": str(tmp_path / "calls"),
        "DEFINITIONS": KUEUE.definitions,
    }


def calls(environment: dict[str, str]) -> list[str]:
    """The packages that Go compiled."""
    path = Path(environment["GO_CALLS"])
    return [line.split()[-1] for line in path.read_text().splitlines()] if path.exists() else []


PACKAGES = [package for _, package in {**SOURCES, **KUEUE.sources}.values()]


def assets(tmp_path: Path, *names: str) -> str:
    folder = tmp_path / "assets"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


def in_another_process(environment: dict[str, str], *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "berthmaster.lab.controlplane.build", *more],
        env=environment,
        cwd=HERE.parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_programs_are_compiled_once_and_found_from_then_on(environment: dict[str, str]) -> None:
    with pytest.raises(Unavailable, match=r"not built yet: etcd, .*controlplane\.build"):
        build.find(environment)
    programs = build.build(environment)
    assert calls(environment) == PACKAGES
    assert build.build(environment) == build.find(environment) == programs
    assert calls(environment) == PACKAGES
    for program in (programs.kube_apiserver, programs.kueue):
        assert program.parent.parent == Path(environment["BERTH_CACHE"], "controlplane")
    assert [each.name for each in programs.kueue_definitions.iterdir()] == ["one.yaml"]


def test_a_version_or_a_flag_that_changes_makes_another_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in MODULES:
        (tmp_path / module).mkdir()
        for name in ("go.mod", "go.sum"):
            (tmp_path / module / name).write_bytes((HERE / module / name).read_bytes())
    keys = [cache_key(SOURCES), cache_key(SOURCES, tmp_path)]
    assert keys[0] == keys[1]
    go_mod = tmp_path / "kubernetes" / "go.mod"
    go_mod.write_text(go_mod.read_text().replace("v1.36.3", "v1.36.4"))
    keys.append(cache_key(SOURCES, tmp_path))
    monkeypatch.setattr(compiling, "FLAGS", ("-race",))
    keys.append(cache_key(SOURCES, tmp_path))
    assert len(set(keys)) == 3


def test_the_version_that_programs_tell_is_the_one_that_is_compiled() -> None:
    for version, folder in KUBERNETES.items():
        go_mod = (HERE / folder / "go.mod").read_text()
        assert f"k8s.io/kubernetes v{version}" in go_mod
        assert f"gitVersion=v{version}" in ld_flags(version)


def test_another_version_has_a_cache_of_its_own(environment: dict[str, str]) -> None:
    default = build.build(environment)
    older = environment | {KUBERNETES_VARIABLE: "1.35.4"}
    programs = build.build(older)
    assert programs == build.find(older)
    assert (default.kubernetes, programs.kubernetes) == ("1.36.3", "1.35.4")
    for name in ("kube_apiserver", "etcd", "kwok"):
        assert getattr(programs, name).parent != getattr(default, name).parent
    with pytest.raises(ValueError, match=r"BERTH_KUBERNETES is '1\.2'; right is one of 1\.36\.3, "):
        build.find(environment | {KUBERNETES_VARIABLE: "1.2"})


def test_a_build_that_is_killed_leaves_no_program_and_the_next_one_cleans_up(
    environment: dict[str, str],
) -> None:
    folder = folder_of(SOURCES, environment)
    with in_another_process(environment | {"GO_WAITS": "60"}) as killed:
        wait_until(lambda: calls(environment), "Go at work")
        wait_until(lambda: list(folder.glob(".*etcd")), "half a program")
        killed.send_signal(signal.SIGKILL)
    assert [path.name for path in folder.iterdir() if path.name != "lock"] == [".unfinished-etcd"]
    with pytest.raises(Unavailable):
        build.find(environment)
    build.build(environment)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["lock", *SOURCES])


def test_two_builds_at_a_time_compile_once(environment: dict[str, str]) -> None:
    slow = environment | {"GO_WAITS": "0.3"}
    with in_another_process(slow) as one, in_another_process(slow) as other:
        texts = [each.communicate(timeout=hang_s())[0].decode() for each in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], texts
    made = calls(environment)  # the kubelet too, where this machine can run one
    assert len(made) == len(set(made))
    assert set(PACKAGES) <= set(made)
    assert any("another build is at it" in text for text in texts)


def test_what_go_says_against_a_program_is_told(environment: dict[str, str]) -> None:
    with pytest.raises(BuildFailed, match="etcd: go build says: undefined: x"):
        build.build(environment | {"GO_FAILS": "1"})
    assert build.build(environment).etcd.exists()


def test_programs_are_taken_from_a_folder_and_what_it_lacks_is_compiled(
    environment: dict[str, str], tmp_path: Path
) -> None:
    folder = assets(tmp_path, "etcd", "kube-apiserver")
    programs = build.build(environment | {"KUBEBUILDER_ASSETS": folder})
    assert [programs.etcd, programs.kube_apiserver] == [
        Path(folder, "etcd"),
        Path(folder, "kube-apiserver"),
    ]
    assert [Path(package).name for package in calls(environment)] == [
        "kube-controller-manager",
        "kube-scheduler",
        "kwok",
        "kueue",
    ]
    assert build.find(environment | {"KUBEBUILDER_ASSETS": folder}) == programs


def test_without_go_the_reason_names_what_is_missing_and_what_would_help(
    environment: dict[str, str], tmp_path: Path
) -> None:
    bare = environment | {"PATH": str(tmp_path)}
    for ask in (build.find, build.build):
        with pytest.raises(Unavailable, match=r"no etcd, kube-apiserver, .* install Go 1.26"):
            ask(bare)
    some = bare | {"KUBEBUILDER_ASSETS": assets(tmp_path, "etcd", "kube-apiserver")}
    with pytest.raises(
        Unavailable, match=r"^no kube-controller-manager, kube-scheduler, kwok here"
    ):
        build.build(some)
    with pytest.raises(Unavailable, match="KUBEBUILDER_ASSETS names '/nowhere'"):
        build.find(bare | {"KUBEBUILDER_ASSETS": "/nowhere"})


def test_a_command_runs_after_the_build_and_learns_why_there_was_none(
    environment: dict[str, str], tmp_path: Path
) -> None:
    tell = ["--", "/bin/sh", "-c", 'echo "why: ${BERTH_CONTROLPLANE_MISSING-}."; exit 3']
    with in_another_process(environment, *tell) as built:
        text = built.communicate(timeout=hang_s())[0].decode()
    assert built.returncode == 3
    assert "why: ." in text
    assert "kwok done in 0 s (5 of 5)" in text

    bare = environment | {"PATH": str(tmp_path), "BERTH_CACHE": str(tmp_path / "other")}
    with in_another_process(bare, *tell) as lacking:
        text = lacking.communicate(timeout=hang_s())[0].decode()
    assert lacking.returncode == 3
    assert "why: no etcd, kube-apiserver" in text
    for ask in (build.find, build.build):
        with pytest.raises(Unavailable, match=r"^because$"):
            ask(environment | {MISSING: "because"})
    with in_another_process(bare) as alone:
        alone.communicate(timeout=hang_s())
    assert alone.returncode == 75


def handed_in(tmp_path: Path) -> dict[str, str]:
    """Variables that name a Kueue of another version."""
    (tmp_path / "other" / "crds").mkdir(parents=True)
    (tmp_path / "other" / "kueue").touch()
    return {
        "KUEUE_BIN": str(tmp_path / "other" / "kueue"),
        "KUEUE_CRDS": str(tmp_path / "other" / "crds"),
    }


def test_project_named_by_its_variables_is_used_and_not_compiled(
    environment: dict[str, str], tmp_path: Path
) -> None:
    named = handed_in(tmp_path)
    programs = build.build(environment | named)
    assert [str(programs.kueue), str(programs.kueue_definitions)] == list(named.values())
    assert build.find(environment | named) == programs
    assert not any("kueue" in package for package in calls(environment))
    assert find_project(KUEUE, named).words == "kueue as handed in"


@pytest.mark.parametrize("lacking", ["KUEUE_BIN", "KUEUE_CRDS"])
def test_project_named_by_half_is_an_error(
    environment: dict[str, str], tmp_path: Path, lacking: str
) -> None:
    half = {name: value for name, value in handed_in(tmp_path).items() if name != lacking}
    with pytest.raises(ValueError, match="KUEUE_BIN and KUEUE_CRDS go together"):
        build.build(environment | half)
    nowhere = handed_in(tmp_path / "again") | {lacking: "/nowhere"}
    with pytest.raises(ValueError, match=f"{lacking} names '/nowhere', which does not exist"):
        find_project(KUEUE, environment | nowhere)


@pytest.mark.parametrize("name", PROJECTS)
def test_project_is_compiled_once_in_the_version_of_its_go_mod(
    environment: dict[str, str], name: str
) -> None:
    project = PROJECTS[name]
    made = environment | {"DEFINITIONS": project.definitions}
    with pytest.raises(Unavailable, match=rf"controlplane\.build {name}` does it in about"):
        find_project(project, made)
    found = build_project(project, made)
    assert find_project(project, made) == found == build_project(project, made)
    assert calls(made) == [package for _, package in project.sources.values()]
    assert found.words == f"{name} {project.version}"
    assert all(found.program(each).exists() for each in project.packages)
    assert found.definitions is None or (found.definitions / "one.yaml").exists()


def test_build_names_the_programs_that_it_knows(environment: dict[str, str]) -> None:
    with in_another_process(environment, "kueue", "kube") as refused:
        text = refused.communicate(timeout=hang_s())[0].decode()
    assert refused.returncode == 2
    assert "no program 'kube'" in text
    with in_another_process(environment, "kueue") as built:
        built.communicate(timeout=hang_s())
    assert built.returncode == 0
    assert calls(environment) == ["sigs.k8s.io/kueue/cmd/kueue"]
