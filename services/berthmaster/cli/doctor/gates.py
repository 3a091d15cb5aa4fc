"""The place of a Kueue manager's feature gates, and how to set one there. Pure.

The gates are in the manager's arguments (``--feature-gates=A=true,B=false``, as in Kueue's Helm
chart) or in its configuration file (``featureGates``). A manager with both refuses to start, so a
remedy changes the place in use. Example: with the argument above, ``C`` becomes
``--feature-gates=A=true,B=false,C=true``, and the file stays.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from berthmaster.cli.doctor.facts import ClusterFacts, GateArgument
from berthmaster.cli.doctor.findings import Finding, edit_manager, kubectl

MANAGER: Final = "kueue-controller-manager"  # the Deployment
SECTION: Final = "featureGates"  # section of the configuration file
_FLAGS: Final = ("--feature-gates", "-feature-gates")  # Go accepts one dash and two
_ON: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_OFF: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def find_argument(number: int, command: Sequence[str], args: Sequence[str]) -> GateArgument | None:
    """Return the last argument that sets gates in container ``number`` of the Deployment.

    None = no argument, or an empty one, which Kueue ignores.
    """
    elements = [("command", at, text) for at, text in enumerate(command)]
    elements += [("args", at, text) for at, text in enumerate(args)]
    found = None
    for place, (field, at, text) in enumerate(elements):
        flag, equals, value = text.partition("=")
        if flag not in _FLAGS:
            continue
        if not equals and place + 1 < len(elements):
            field, at, text = elements[place + 1]
            value = text
        path = f"/spec/template/spec/containers/{number}/{field}/{at}"
        found = GateArgument(path=path, text=text, value=value)
    return found if found is not None and found.value else None


def parse_gates(value: str) -> dict[str, bool]:
    """Return the gates in the value of an argument. An invalid pair is omitted."""
    gates: dict[str, bool] = {}
    for pair in value.split(","):
        name, _, text = (part.strip() for part in pair.partition("="))
        if name and text in _ON | _OFF:
            gates[name] = text in _ON
    return gates


def set_gate(cluster: ClusterFacts, gate: str, *, on: bool) -> tuple[str, str]:
    """Return the steps that set a gate in the place in use, and the steps that undo that."""
    argument = cluster.gate_argument
    if argument is not None:
        return _replace(cluster, argument, {gate: on})
    change, undo = (
        edit_manager(cluster, f"{SECTION}:\n  {gate}: {str(each).lower()}") for each in (on, not on)
    )
    return change, undo


def _replace(
    cluster: ClusterFacts, argument: GateArgument, gates: Mapping[str, bool]
) -> tuple[str, str]:
    kept = [
        pair.strip()
        for pair in argument.value.split(",")
        if pair.strip() and pair.partition("=")[0].strip() not in gates
    ]
    value = ",".join([*kept, *(f"{name}={str(on).lower()}" for name, on in gates.items())])
    text = argument.text[: len(argument.text) - len(argument.value)] + value
    return (
        _patch(cluster, argument.path, argument.text, text),
        _patch(cluster, argument.path, text, argument.text),
    )


def _patch(cluster: ClusterFacts, path: str, before: str, after: str) -> str:
    """Return the patch of one argument, if unchanged since the read. The Deployment restarts
    itself."""
    steps: list[dict[str, Any]] = [
        {"op": op, "path": path, "value": text}
        for op, text in (("test", before), ("replace", after))
    ]
    patch = shlex.quote(json.dumps(steps))
    return (
        "# with Helm: controllerManager.featureGates of the chart's values, too, or the next "
        "upgrade undoes this\n"
        f"{kubectl(cluster)} -n kueue-system patch deployment {MANAGER} --type json -p {patch}"
    )


def specified_twice(cluster: ClusterFacts) -> Finding | None:
    """Return the finding that both places have gates, or None."""
    argument, gates = cluster.gate_argument, cluster.file_gates
    if argument is None or gates is None:
        return None
    change, undo = _replace(cluster, argument, {**gates, **parse_gates(argument.value)})
    without = edit_manager(cluster, f"{SECTION}: (remove this section)")
    lines = "".join(f"\n  {name}: {str(on).lower()}" for name, on in gates.items())
    again = edit_manager(cluster, f"{SECTION}:{lines or ' {}'}")
    return Finding(
        level="blocks",
        where=cluster.name,
        what="Kueue's manager refuses to start: feature gates stand in its arguments and in its "
        f"configuration file ({SECTION})",
        means="Kueue takes gates from one of the two places. A manager that runs now ends with its "
        "next restart.",
        change=f"{change}\n{without}",
        undo=f"{undo}\n{again}",
    )
