"""Names of the streams, and the stream of a subject.

Modules that only need a name import stream_names. streams.py needs a connection.
"""

from typing import Final

WORKLOADS: Final = "WORKLOADS"
FLEET: Final = "FLEET"
FLEET_LOG: Final = "FLEET_LOG"
CONTROL: Final = "CONTROL"
ARCHIVE: Final = "ARCHIVE"
DEAD: Final = "DEAD"
LOG_ENDS: Final = "LOG_ENDS"
LEASES: Final = "LEASES"
SNAPSHOTS: Final = "OBJ_SNAPSHOTS"  # the stream of the object store bucket SNAPSHOTS
_STREAMS: Final = {
    "workload": WORKLOADS,
    "decision": WORKLOADS,
    "fleet": FLEET,
    "control": CONTROL,
    "archive": ARCHIVE,
    "dead": DEAD,
    "lease": LEASES,
    "SNAPSHOTS": SNAPSHOTS,
}


def stream_of(subject: str) -> str:
    """Return the stream that stores a Berthmaster subject."""
    return _STREAMS.get(subject.split(".", 2)[1], subject)
