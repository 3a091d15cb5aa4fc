"""What a diagnosis consists of, and the words that hub and worker share."""

import re
import shlex
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from berthmaster.doctor.facts import ClusterFacts, Survey

Level = Literal["ok", "note", "warning", "blocks"]
MOST_SKEW_S: Final = 5.0  # ahead of us; behind, a lease may just not have been renewed for a while
MOST_LAG_S: Final = 60.0
OLDEST_KUEUE: Final = (0, 16)  # v1beta2 is stored since then
TESTED_KUEUE: Final = "v0.19.2"
_IMAGE_VERSION: Final = re.compile(r":v?(\d+)\.(\d+)(?:\.(\d+))?")
_MANIFESTS: Final = "https://github.com/kubernetes-sigs/kueue/releases/download"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was found, what it means, and what to do about it."""

    level: Level
    where: str  # the cluster
    what: str  # a line
    means: str = ""
    change: str = ""  # commands or YAML, as they are typed; "" = nothing to do
    undo: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole diagnosis."""

    mode: str
    ready: bool  # nothing blocks this mode
    findings: list[Finding]


def kubectl(cluster: ClusterFacts) -> str:
    """The command for this cluster."""
    flags = [("--kubeconfig", cluster.kubeconfig), ("--context", cluster.context)]
    return " ".join(["kubectl", *(f"{flag} {shlex.quote(text)}" for flag, text in flags if text)])


def kueue_version(image: str) -> tuple[int, ...] | None:
    """(0, 19, 2) of an image; None where its tag does not say."""
    found = _IMAGE_VERSION.search(image)
    return tuple(int(part or 0) for part in found.groups()) if found else None


def shared(cluster: ClusterFacts, survey: Survey, overlay: str) -> Iterator[Finding]:
    """What holds for hub and worker alike; ``overlay``: the folder of deploy/kubernetes."""
    where = cluster.name
    yield Finding(level="ok", where=where, what=f"API server answers, {cluster.version}")
    yield from _clock(cluster)
    for text in cluster.unread:
        yield Finding(
            level="note",
            where=where,
            what=f"not looked at: {text}",
            means="What depends on it is not checked here.",
        )
    yield from _kueue(cluster)
    yield from _rights(cluster, survey, overlay)


def _clock(cluster: ClusterFacts) -> Iterator[Finding]:
    skew_s = cluster.skew_s
    if skew_s is None or -MOST_LAG_S <= skew_s <= MOST_SKEW_S:
        return
    which = "ahead of" if skew_s > 0 else "behind"
    yield Finding(
        level="warning",
        where=cluster.name,
        what=f"its clock is {abs(skew_s):.0f} s {which} this machine's",
        means="Decisions do not depend on it; tokens and certificates may be refused as not yet or "
        "no longer valid.",
        change="Set one of the two clocks right (chronyc tracking shows by how much it is off).",
    )


def _kueue(cluster: ClusterFacts) -> Iterator[Finding]:
    install = (
        f"{kubectl(cluster)} apply --server-side -f {_MANIFESTS}/{TESTED_KUEUE}/manifests.yaml"
    )
    undo = f"{kubectl(cluster)} delete -f {_MANIFESTS}/{TESTED_KUEUE}/manifests.yaml"
    version = kueue_version(cluster.kueue_image)
    shown = f" {'.'.join(map(str, version))}" if version else ""
    if not cluster.kueue_versions:
        yield Finding(
            level="blocks",
            where=cluster.name,
            what="Kueue is not installed: its API is not served",
            means="MultiKueue needs Kueue on the hub and on every worker.",
            change=install,
            undo=undo,
        )
    elif "v1beta2" not in cluster.kueue_versions:
        served = ", ".join(sorted(cluster.kueue_versions))
        yield Finding(
            level="blocks",
            where=cluster.name,
            what=f"Kueue{shown} serves {served} and not v1beta2",
            means="From Kueue 0.16 on it does; older ones are not spoken to.",
            change=install,
            undo="Kueue has no way back over this change of stored objects: back them up first.",
        )
    elif version is not None and version < OLDEST_KUEUE:
        yield Finding(
            level="blocks",
            where=cluster.name,
            what=f"Kueue{shown} is older than 0.16",
            means="What MultiKueue promises to a dispatcher is kept from 0.16 on.",
            change=install,
            undo="Apply the manifests of the version that was there.",
        )
    else:
        yield Finding(level="ok", where=cluster.name, what=f"Kueue{shown} serves v1beta2")


def _rights(cluster: ClusterFacts, survey: Survey, overlay: str) -> Iterator[Finding]:
    missing = cluster.missing_rights
    if not missing:
        if cluster.rights_of:
            what = f"{cluster.rights_of} may do all that {survey.mode} needs"
            yield Finding(level="ok", where=cluster.name, what=what)
        return
    listed = ", ".join(str(right) for right in missing[:6])
    more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
    why = ", ".join(dict.fromkeys(right.why for right in missing if right.why))
    yield Finding(
        level="blocks",
        where=cluster.name,
        what=f"{cluster.rights_of} may not: {listed}{more}",
        means=f"Needed {why}.",
        change=f"{kubectl(cluster)} apply -k deploy/kubernetes/{overlay}",
        undo=f"{kubectl(cluster)} delete -k deploy/kubernetes/{overlay}",
    )
