"""Problems of the fleet in words, for dashboard and terminal. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from berthmaster.lib.engine.fleet.clusters import Cluster
from berthmaster.lib.engine.fleetview.rows import ClusterRow
from berthmaster.lib.messages.control import FAILING_NODE_BY, Cordon
from berthmaster.lib.messages.fleet import ClosedGpu, NodeReport

Level = Literal["broken", "note"]
SILENT_INTERVALS: Final = 3.0
SILENT_LEAST_S: Final = 10.0
PROBLEMS_A_CLUSTER: Final = 20  # maximum of node problems shown for a cluster
NODES_NAMED: Final = 3  # nodes named for one problem
LETTERS_S: Final = 86_400.0  # age limit of letters here; `berth problems dead` has 30 days
MOST_NAMED: Final = 3  # unlistable kinds of objects named
_MINUTES_A_DAY: Final = 1440


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One problem. ``detail`` may name others' objects and is for operators only."""

    level: Level
    text: str
    cluster: str = ""
    since_s: float | None = None  # server's time of the problem
    detail: str = ""


def of_cluster(row: ClusterRow, interval_s: float) -> Iterator[Problem]:
    """Yield problems of a cluster. ``interval_s``: its heartbeat interval; 0 = unknown."""
    limit_s = max(SILENT_LEAST_S, SILENT_INTERVALS * interval_s)
    if row.lost is not None:
        yield Problem("broken", f"declared lost: {row.lost}", row.cluster)
    elif row.seen_s is None:
        yield Problem("note", "has given no sign of life yet", row.cluster)
    elif row.seen_s > limit_s:
        yield Problem("broken", "is silent", row.cluster)
    if row.same_as:
        text = (
            f"is the API server of cluster {row.same_as}, which counts: this one takes no jobs; "
            f"stop its agent, or declare {row.same_as} lost if that is its old name"
        )
        yield Problem("broken", text, row.cluster)
    for one in row.unlisted:
        text = f"its API server cannot list {one.kind}, so what is known of them may be old"
        yield Problem("broken", text, row.cluster, one.since_s, one.why)
    if row.freshness in ("stale", "withdrawn"):
        yield Problem("note", f"scores are {row.freshness}: {row.note}", row.cluster)
    if row.cordoned is not None:
        yield Problem("note", f"cordoned: {row.cordoned}", row.cluster)
    if row.cordoned_nodes:
        yield Problem("note", f"{many(row.cordoned_nodes, 'node')} cordoned", row.cluster)


def of_nodes(cluster: str, reports: Iterable[NodeReport]) -> Iterator[Problem]:
    """Yield problems reported for nodes, one line for all nodes with the same problem."""
    nodes: dict[str, list[str]] = {}
    for report in reports:
        for text in report.problems:
            nodes.setdefault(text, []).append(report.node)
    by_number = sorted(nodes.items(), key=lambda one: (-len(one[1]), one[0]))
    for text, names in by_number[:PROBLEMS_A_CLUSTER]:
        named = ", ".join(sorted(names)[:NODES_NAMED])
        more = f" and {len(names) - NODES_NAMED} more" if len(names) > NODES_NAMED else ""
        yield Problem(
            "note", f"{'node' if len(names) == 1 else 'nodes'} {named}{more}: {text}", cluster
        )
    if (left := len(by_number) - PROBLEMS_A_CLUSTER) > 0:
        yield Problem("note", f"{many(left, 'other problem')} of nodes", cluster)


def of_gpus(cluster: str, faulty: Collection[tuple[str, ClosedGpu]]) -> Iterator[Problem]:
    """Yield GPUs that get no new pods because telemetry found them faulty, the newest first."""
    newest = sorted(faulty, key=lambda one: (-one[1].since_s, one[0], one[1].index))
    for node, gpu in newest[:PROBLEMS_A_CLUSTER]:
        text = (
            f"GPU {gpu.index} of node {node} gets no new pods ({gpu.fault}: {gpu.reason}) until it "
            f"was well for a while, or: berth uncordon {cluster} {node} --gpu {gpu.index}"
        )
        level: Level = "note" if gpu.fault == "throttled" else "broken"
        yield Problem(level, text, cluster, gpu.since_s)
    if (left := len(newest) - PROBLEMS_A_CLUSTER) > 0:
        yield Problem("broken", f"{many(left, 'other GPU')} get no new pods: faulty", cluster)


def of_cordons(cordons: Iterable[Cordon]) -> Iterator[Problem]:
    """Yield nodes on which jobs of several owners failed, with the command that empties them.
    Their evidence names jobs, so it is a detail."""
    for cordon in sorted(cordons, key=lambda one: (one.cluster, one.node or "")):
        if cordon.set_by == FAILING_NODE_BY and cordon.node is not None and not cordon.drain:
            text = (
                f"node {cordon.node} fails jobs of several owners and gets nothing new; to move "
                f"away what runs there: berth drain {cordon.cluster} {cordon.node}"
            )
            yield Problem("note", text, cordon.cluster, cordon.set_at_s, cordon.reason)


def of_letters(newest: Mapping[str, tuple[float, str]], now_s: float) -> Iterator[Problem]:
    """Yield problems from dead letters. ``newest``: time and reason of each service's newest."""
    for service, (at_s, reason) in sorted(newest.items()):
        if now_s - at_s <= LETTERS_S:
            what = "could not handle a message, or deliver a letter"
            text = f"{service} {what} (see `berth problems dead`)"
            yield Problem("note", text, "", at_s, reason)


def many(count: int, noun: str) -> str:
    """3 nodes, 1 node."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def unlisted_words(cluster: Cluster) -> str:
    """Return a clause such as "berlin cannot list resourceslices.resource.k8s.io since 12:03 UTC:
    what is known of them may be old"; "" if every kind is listed.

    The server's error message is for operators (`berth problems`), because it may name internal
    addresses.
    """
    found = cluster.profile.unlisted if cluster.profile is not None else ()
    if not found:
        return ""
    names = ", ".join(one.kind for one in found[:MOST_NAMED])
    more = f" and {len(found) - MOST_NAMED} more kinds" if len(found) > MOST_NAMED else ""
    minute = round(min(one.since_s for one in found) / 60) % _MINUTES_A_DAY
    since = f"{minute // 60:02}:{minute % 60:02} UTC"
    return f"{cluster.name} cannot list {names}{more} since {since}: what is known may be old"


def all_unlisted(clusters: Iterable[Cluster]) -> list[str]:
    return [words for cluster in clusters if (words := unlisted_words(cluster))]
