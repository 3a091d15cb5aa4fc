"""Durable consumers: ``ensure_streams`` makes them with the streams, workers pull from them.

A consumer delivers to any subject that its maker names, so only the user "setup" makes consumers.
"""

from typing import Any, Final, NamedTuple

from berthmaster.lib.nats.stream_names import WORKLOADS
from berthmaster.lib.nats.subjects import ALL_DECISIONS, workload_events_of

_NS: Final = 10**9


class Durable(NamedTuple):
    """One durable consumer. A consumer has one filter: with several the server compares all
    subjects of a block with them for each message, and on a stream of 60,000 messages a backlog
    came nine times slower."""

    stream: str
    name: str
    filter: str
    ack_wait_s: float = 10.0
    most_unfinished: int = 1024  # messages delivered and not finished; no others are delivered
    from_now: bool = False  # nothing that the stream has already

    def config(self) -> dict[str, Any]:
        """Return the consumer's configuration as the server takes it."""
        return {
            "name": self.name,
            "durable_name": self.name,
            "ack_policy": "explicit",
            "ack_wait": int(self.ack_wait_s * _NS),
            "deliver_policy": "new" if self.from_now else "all",
            "max_ack_pending": self.most_unfinished,
            "max_waiting": 512,
            "filter_subject": self.filter,
        }

    @property
    def create(self) -> str:
        """Return the request that makes the consumer."""
        return f"CONSUMER.CREATE.{self.stream}.{self.name}.{self.filter}"


ENDINGS: Final = ("succeeded", "failed", "cancelled")
_NOT_DUE: Final = 256  # of the archivist: behind one that is not due, none is due
ARCHIVED_DECISIONS: Final = Durable(
    WORKLOADS, "archivist-decisions", ALL_DECISIONS, most_unfinished=_NOT_DUE
)
ARCHIVED_STORIES: Final = tuple(
    Durable(WORKLOADS, f"archivist-{kind}", workload_events_of(kind), most_unfinished=_NOT_DUE)
    for kind in ENDINGS
)
TOMBSTONES: Final = tuple(
    each._replace(name=f"archivist-tombstones-{kind}")
    for each, kind in zip(ARCHIVED_STORIES, ENDINGS, strict=True)
)
NOTICES: Final = tuple(
    Durable(WORKLOADS, f"webhooks-{kind}", workload_events_of(kind), from_now=True)
    for kind in (*ENDINGS, "evicted")
)
DURABLES: Final = (ARCHIVED_DECISIONS, *ARCHIVED_STORIES, *TOMBSTONES, *NOTICES)
