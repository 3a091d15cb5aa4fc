"""Remedies change a feature gate where gates stand, since Kueue refuses gates in two places."""

import json
import shlex
from typing import Any

import pytest

from berthmaster.cli.doctor.facts import ClusterQueue, GateArgument, ManagerConfig
from berthmaster.cli.doctor.findings import Finding
from berthmaster.cli.doctor.gates import find_argument, parse_gates
from berthmaster.cli.doctor.hub import MANAGED_BY_GATE
from berthmaster.cli.doctor.nominations import MERGE_GATE
from berthmaster.lib.kueue.versions import WORKER_CLIENTS
from tests.unit.cli.doctor.surveys import finding, of_hub, of_worker, wrong

ARGS = "/spec/template/spec/containers"
ELASTIC = "ElasticJobsViaWorkloadSlices"
ARGUMENT = GateArgument(
    path=f"{ARGS}/0/args/2", text="--feature-gates=A=true,B=false", value="A=true,B=false"
)


@pytest.mark.parametrize(
    ("command", "args", "path", "value"),
    [
        ((), ("--config=x", "--feature-gates=A=true"), "args/1", "A=true"),
        ((), ("-feature-gates=A=true",), "args/0", "A=true"),
        ((), ("--feature-gates", "A=true", "--config=x"), "args/1", "A=true"),
        (("/manager", "--feature-gates=A=true"), (), "command/1", "A=true"),
        (("/manager", "--feature-gates"), ("A=true",), "args/0", "A=true"),
        ((), ("--feature-gates=A=true", "--feature-gates=B=true"), "args/1", "B=true"),
    ],
)
def test_find_argument_names_the_element_that_counts(
    command: tuple[str, ...], args: tuple[str, ...], path: str, value: str
) -> None:
    found = find_argument(3, command, args)
    assert found is not None
    assert (found.path, found.value) == (f"{ARGS}/3/{path}", value)
    assert found.text.endswith(value)


@pytest.mark.parametrize("args", [(), ("--config=x",), ("--feature-gates=",), ("--feature-gates",)])
def test_find_argument_returns_none_where_no_gate_is_set(args: tuple[str, ...]) -> None:
    assert find_argument(0, ("/manager",), args) is None


def test_parse_gates_reads_booleans_as_go_does() -> None:
    value = "A=true, B=False,C=1,D=f,E=yes,F,=true,,G=T"
    assert parse_gates(value) == {"A": True, "B": False, "C": True, "D": False, "G": True}


def patched(steps: str, text: str) -> str:
    """Return the argument after the patch of these steps, which has to find it as it is."""
    [line] = [line for line in steps.splitlines() if "patch deployment" in line]
    test, replace = json.loads(shlex.split(line)[-1])
    assert (test["op"], test["value"], replace["op"]) == ("test", text, "replace")
    assert test["path"] == replace["path"] == ARGUMENT.path
    after: str = replace["value"]
    return after


@pytest.mark.parametrize(
    ("version", "gates", "what"),
    [
        ("0.19.2", {}, "is missing; Kueue 0.18.8, 0.19.4 and 0.20 have the gate"),
        ("0.19.4", {}, "is off"),
        ("0.19.4", {WORKER_CLIENTS.name: True}, ""),
        ("0.20.1", {}, ""),
        ("0.20.1", {WORKER_CLIENTS.name: False}, "is off"),
    ],
)
def test_few_calls_to_workers_are_told_by_the_version(
    version: str, gates: dict[str, bool], what: str
) -> None:
    image = f"registry.k8s.io/kueue/kueue:v{version}"
    report = of_hub(kueue_image=image, manager=ManagerConfig(gates=gates))
    found = [each for each in report.findings if WORKER_CLIENTS.name in each.what]
    told = [each.what.partition(f"{WORKER_CLIENTS.name} ")[2] for each in found]
    assert told == ([what] if what else [])
    for each in found:
        assert each.level == "note"
        assert (f"{WORKER_CLIENTS.name}: true" in each.change) is (what == "is off")


REMEDIES: list[tuple[str, str, dict[str, Any]]] = [
    ("hub", f"{MANAGED_BY_GATE}=true", {"manager": ManagerConfig(gates={MANAGED_BY_GATE: False})}),
    ("worker", f"{ELASTIC}=true", {"gates": {ELASTIC: False}}),
]


def remedy(where: str, gate: str, argument: GateArgument, **changed: Any) -> Finding:
    changed["gate_argument"] = argument
    if where == "worker":
        return finding(of_worker(**changed), gate.partition("=")[0])
    return finding(of_hub("dispatch", **changed), gate.partition("=")[0])


@pytest.mark.parametrize(("where", "gate", "changed"), REMEDIES)
def test_a_remedy_extends_the_argument_and_leaves_the_file_alone(
    where: str, gate: str, changed: dict[str, Any]
) -> None:
    found = remedy(where, gate, ARGUMENT, **changed)
    after = patched(found.change, ARGUMENT.text)
    assert after == f"--feature-gates=A=true,B=false,{gate}"
    assert patched(found.undo, after) == ARGUMENT.text
    assert "configmap" not in found.change + found.undo


@pytest.mark.parametrize("off", ["false", "0", "F"])
def test_a_gate_in_the_argument_is_replaced_and_not_repeated(off: str) -> None:
    value = f"{MANAGED_BY_GATE}={off},A=true"
    argument = GateArgument(path=ARGUMENT.path, text=value, value=value)
    found = remedy("hub", MANAGED_BY_GATE, argument, manager=REMEDIES[0][2]["manager"])
    assert patched(found.change, value) == f"A=true,{MANAGED_BY_GATE}=true"


def test_a_deadly_gate_is_switched_off_in_the_argument() -> None:
    text = f"--feature-gates={MERGE_GATE}=true"
    found = finding(
        of_hub(
            "dispatch",
            manager=ManagerConfig(dispatcher="x/y", gates={MERGE_GATE: True}),
            cluster_queues=(ClusterQueue(name="gpus", checks=("mk",), preempts=True),),
            gate_argument=GateArgument(ARGUMENT.path, text, text.partition("=")[2]),
        ),
        f"the gate {MERGE_GATE} is on",
    )
    assert patched(found.change, text) == f"--feature-gates={MERGE_GATE}=false"


@pytest.mark.parametrize("gates", [{}, {"A": False, "C": True}])
def test_duplicate_gates_move_to_argument(gates: dict[str, bool]) -> None:
    for report in (
        of_hub(gate_argument=ARGUMENT, file_gates=gates),
        of_worker(gate_argument=ARGUMENT, file_gates=gates),
    ):
        found = finding(report, "refuses to start: feature gates stand in its arguments and in")
        assert found.level == "blocks"
        after = patched(found.change, ARGUMENT.text)
        assert parse_gates(after.partition("=")[2]) == {**gates, "A": True, "B": False}
        assert "#   featureGates: (remove this section)" in found.change
        assert "#   featureGates:" in found.undo
    assert wrong(of_hub(gate_argument=ARGUMENT)) == wrong(of_hub(file_gates=gates)) == []
