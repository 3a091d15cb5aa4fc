"""Which subject an event belongs under, and whose event stands under one. Pure.

Guards go by subjects, so an event belongs to the workload that its subject names. One whose content
names another workload, kind or cluster is nobody's word: it is void.
"""

from typing import NamedTuple

import msgspec

from berthmaster.lib.messages.families import EVENTS, event_cluster, event_kind
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats import subjects


class Decoded(NamedTuple):
    event: WorkloadEvent  # of the workload that its subject names
    is_astray: bool  # its content is another's


def event_subject(event: WorkloadEvent) -> str:
    """Where an event belongs. Raises SubjectError."""
    return subjects.workload_event(event.tenant, event.id, event_kind(event), event_cluster(event))


def decode_event(subject: str, data: bytes) -> Decoded:
    """Raises UNREADABLE, and SubjectError where the subject names no workload."""
    event = EVENTS.decode(data)
    try:
        if event_subject(event) == subject:
            return Decoded(event, False)
    except subjects.SubjectError:
        pass
    place = subjects.parse_workload_event(subject)
    return Decoded(msgspec.structs.replace(event, tenant=place.tenant, id=place.id), True)
