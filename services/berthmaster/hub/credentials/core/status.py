"""The status that `kubectl get configmap` and `berth cluster credentials` show, as JSON lines.

Pure. The status is a ConfigMap in the service's namespace, because no writable object of the hub
has a condition for it. The ConfigMap is written on change, within etcd's size limit.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from berthmaster.hub.credentials.core.credentials import Status
from berthmaster.lib.kube.objects import Object, timestamp

NAME: Final = "berthmaster-credentials"
MAX_BYTES: Final = 900_000  # an object may have 1 MiB
MAX_MESSAGE_CHARS: Final = 600
MORE: Final = "_more"  # no cluster name begins with an underscore


class ConfigMap(Object, frozen=True):
    data: dict[str, str] | None = None


class Line(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    state: str
    ready: bool  # Kueue has a token that should work
    draining: bool = False
    by: str = ""
    expires_at: str = ""
    renew_at: str = ""
    since: str = ""
    message: str = ""


def line(status: Status) -> Line:
    """Return the status line of a cluster."""
    return Line(
        state="Draining" if status.draining else status.stage.value,
        ready=status.usable,
        draining=status.draining,
        by=status.by,
        expires_at=_time(status.expires_at_s),
        renew_at=_time(status.renew_at_s),
        since=_time(status.since_s),
        message=status.message[:MAX_MESSAGE_CHARS],
    )


def table(statuses: Sequence[Status]) -> dict[str, str]:
    """Return the ConfigMap's data, with a count of the clusters that do not fit."""
    found: dict[str, str] = {}
    size = 0
    for number, status in enumerate(statuses):
        text = msgspec.json.encode(line(status)).decode()
        size += len(text) + len(status.cluster) + 8
        if size > MAX_BYTES:
            found[MORE] = str(len(statuses) - number)
            break
        found[status.cluster] = text
    return found


def parse(data: Mapping[str, str]) -> tuple[dict[str, Line], int]:
    """Return the clusters by name, and the number that did not fit. Raises MsgspecError."""
    more = data.get(MORE, "0")
    lines = {
        name: msgspec.json.decode(text, type=Line) for name, text in data.items() if name != MORE
    }
    return lines, int(more) if more.isdigit() else 0


def _time(at_s: float) -> str:
    return timestamp(at_s) if 0 < at_s < 1e11 else ""
