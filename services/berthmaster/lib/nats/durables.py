"""Durable consumers: ``ensure_streams`` creates consumers with the streams, and workers pull from
them.

A consumer delivers to any subject named by the creator. So only the user "setup" creates consumers.
"""

from typing import Any, Final, NamedTuple

from berthmaster.lib.nats.stream_names import WORKLOADS
from berthmaster.lib.nats.subjects import ALL_DECISIONS, workload_events_of

_NS: Final = 10**9


class Durable(NamedTuple):
    """One durable consumer, with a single filter. With several filters, the server compares all
    subjects of a block with them for each message. On a stream of 60,000 messages a backlog was
    nine times slower.
    """

    stream: str
    name: str
    filter: str
    ack_wait_s: float = 10.0
    # maximum number of delivered and unacknowledged messages
    most_unfinished: int = 1024
    from_now: bool = False  # skip messages stored before the consumer was created

    def config(self) -> dict[str, Any]:
        """Return the consumer's configuration in the server's format."""
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
        """Return the request that creates the consumer."""
        return f"CONSUMER.CREATE.{self.stream}.{self.name}.{self.filter}"


ENDINGS: Final = ("succeeded", "failed", "cancelled")
# of the archivist: events fall due in order, so more would only wait
_NOT_DUE: Final = 256
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
