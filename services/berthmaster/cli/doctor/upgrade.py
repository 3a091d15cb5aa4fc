"""`berth doctor --upgrade`: the next step of an upgrade, from the images of Berthmaster's pods.

The order is that of docs/operators/upgrade.md: all agents first, then the hub. Neighbouring minor
versions read each other's messages, so services may be at most one apart. Example: the hub runs
0.1.0, the agents run 0.2.0, and the target is 0.2.0: the hub is next.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from berthmaster.cli.doctor.facts import ClusterFacts, HubFacts
from berthmaster.cli.doctor.findings import (
    AGENT_RELEASE,
    HUB_RELEASE,
    Finding,
    Report,
    install,
)

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:[-+.].*)?$")


class Version(NamedTuple):
    """A release of Berthmaster."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    def is_next_to(self, other: "Version") -> bool:
        """Return whether services of both versions read each other's messages."""
        return self.major == other.major and abs(self.minor - other.minor) <= 1


def parse_version(text: str) -> Version | None:
    """Return the version of 0.2.0 or v0.2.0; None = no version."""
    found = _VERSION.match(text)
    return Version(*map(int, found.groups())) if found else None


def version_of_image(image: str) -> Version | None:
    """Return the version of registry/name:0.2.0, with or without a digest; else None."""
    _, colon, tag = image.partition("@")[0].rpartition(":")
    return parse_version(tag) if colon else None


@dataclass(frozen=True, kw_only=True)
class OurContainer:
    """A container of a Berthmaster pod."""

    service: str
    pod: str
    image: str
    ready: bool


@dataclass(frozen=True, kw_only=True)
class Side:
    """Berthmaster's pods in one cluster."""

    cluster: ClusterFacts
    containers: tuple[OurContainer, ...] = ()

    @property
    def release(self) -> str:
        """Return the name of the chart's release, as in docs/operators/install.md."""
        return HUB_RELEASE if isinstance(self.cluster, HubFacts) else AGENT_RELEASE

    @property
    def versions(self) -> list[Version]:
        """Return the running versions, oldest first."""
        found = {version_of_image(one.image) for one in self.containers}
        return sorted(one for one in found if one is not None)


def diagnose(hub: Side | None, agents: Sequence[Side], target: Version, namespace: str) -> Report:
    """Return the obstacles of the next step, and the step."""
    found = [*_checks(hub, agents, target, namespace)]
    if not any(one.level == "blocks" for one in found):
        found += _next_step(hub, agents, target, namespace)
    ready = not any(one.level == "blocks" for one in found)
    return Report(mode=f"upgrade to {target}", ready=ready, findings=found)


def _sides(hub: Side | None, agents: Sequence[Side]) -> list[Side]:
    return [*agents, *([hub] if hub is not None else [])]


def _checks(
    hub: Side | None, agents: Sequence[Side], target: Version, namespace: str
) -> Iterator[Finding]:
    for side in _sides(hub, agents):
        yield from _of_side(side, target, namespace)
    if hub is None or not hub.versions:
        return
    for agent in agents:
        if agent.versions and hub.versions[-1] > agent.versions[0]:
            yield Finding(
                level="blocks",
                where=agent.cluster.name,
                what=f"agent {agent.versions[0]} is older than the hub's {hub.versions[-1]}",
                means="Agents go first: an old agent may not read what a newer hub places. Jobs "
                "that run are not touched.",
                change=_upgrade(agent, hub.versions[-1], namespace),
            )


def _of_side(side: Side, target: Version, namespace: str) -> Iterator[Finding]:
    where = side.cluster.name
    if side.cluster.unreachable:
        yield Finding(
            level="blocks", where=where, what=f"not reachable: {side.cluster.unreachable}",
            means="The order of an upgrade cannot be checked without this cluster.",
        )  # fmt: skip
        return
    if not side.containers:
        yield Finding(
            level="blocks", where=where, what=f"no pod of ours in the namespace {namespace}",
            means="Name the namespace with --namespace. Processes of `berth up` are upgraded by "
            "ending it, installing the version, and starting it again.",
        )  # fmt: skip
        return
    if nameless := sorted(
        one.service for one in side.containers if version_of_image(one.image) is None
    ):
        yield Finding(
            level="warning", where=where,
            what=f"no version in the image of {', '.join(dict.fromkeys(nameless))}",
            means="Their order is not checked. The chart's images are NAME:VERSION@DIGEST.",
        )  # fmt: skip
    if waiting := sorted({one.pod for one in side.containers if not one.ready}):
        yield Finding(
            level="blocks", where=where, what=f"not ready: {', '.join(waiting)}",
            means="A step begins once the one before is complete.",
            change=f"kubectl -n {namespace} describe pod {waiting[0]}",
        )  # fmt: skip
    for version in side.versions:
        if not version.is_next_to(target):
            yield Finding(
                level="blocks", where=where, what=f"{version} is not next to {target}",
                means="Services read messages of the neighbouring minor versions. Upgrade from "
                "one minor version to the next.",
            )  # fmt: skip
    if len(side.versions) > 1:
        shown = ", ".join(map(str, side.versions))
        yield Finding(
            level="blocks", where=where, what=f"several versions run: {shown}",
            means="A rollout goes on, or it failed in the middle.",
            change=f"kubectl -n {namespace} get pods -l app.kubernetes.io/part-of=berthmaster",
        )  # fmt: skip
    elif side.versions:
        yield Finding(level="ok", where=where, what=f"{side.versions[0]} runs, all ready")


def _next_step(
    hub: Side | None, agents: Sequence[Side], target: Version, namespace: str
) -> Iterator[Finding]:
    if hub is not None and hub.versions and hub.versions[0] > target:
        yield Finding(
            level="note", where=hub.cluster.name,
            what=f"next: the hub, back from {hub.versions[0]} to {target}",
            means="A step back is safe as long as no resolver of the newer version has decided; "
            "otherwise the older one stands by. Go back with the hub first, then the agents.",
            change=_upgrade(hub, target, namespace),
        )  # fmt: skip
        return
    behind = [side for side in agents if side.versions and side.versions[0] != target]
    for side in behind:
        yield Finding(
            level="note", where=side.cluster.name, what=f"next: the agent, to {target}",
            change=_upgrade(side, target, namespace),
            undo=_upgrade(side, side.versions[0], namespace),
        )  # fmt: skip
    if behind or hub is None or not hub.versions:
        return
    if hub.versions[0] != target:
        yield Finding(
            level="note", where=hub.cluster.name, what=f"next: the hub, to {target}",
            means="Nothing is placed until its pods are ready. Jobs that run go on.",
            change=_upgrade(hub, target, namespace),
            undo=_upgrade(hub, hub.versions[0], namespace),
        )  # fmt: skip
    else:
        yield Finding(level="ok", where=hub.cluster.name, what=f"everything runs {target}")


def _upgrade(side: Side, version: Version, namespace: str) -> str:
    change, _ = install(side.cluster, namespace, side.release, f"image.tag={version}")
    return change
