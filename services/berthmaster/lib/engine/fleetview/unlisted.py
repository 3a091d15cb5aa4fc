"""What `why` says of clusters whose API server cannot list some kinds of objects. Pure."""

from collections.abc import Iterable
from typing import Final

from berthmaster.lib.engine.fleet.clusters import Cluster

_MINUTES_A_DAY: Final = 1440
MOST_NAMED: Final = 3


def unlisted_words(cluster: Cluster) -> str:
    """Return a clause for people, such as "berlin cannot list resourceslices.resource.k8s.io since
    12:03 UTC: what is known of them may be old"; "" where the cluster lists everything. The
    server's own words are for operators (`berth problems`): they may name internal addresses."""
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
