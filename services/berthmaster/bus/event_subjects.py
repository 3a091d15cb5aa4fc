"""Which subject an event belongs under, and whose event stands under one. Pure.

Guards go by subjects, so an event belongs to the workload that its subject names. One whose content
names another workload, kind or cluster is nobody's word: it is void.
"""

from typing import NamedTuple

import msgspec

from berthmaster.bus import subjects
from berthmaster.lifecycle.flaws import Flaws, stand_in
from berthmaster.messages.families import EVENTS, UNREADABLE, event_cluster, event_kind
from berthmaster.messages.workload import WorkloadEvent


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


def decode_recorded(subject: str, sequence: int, data: bytes, flaws: Flaws) -> Decoded:
    """The same of a message of the log: one that cannot be read and that a person declared void is
    nobody's word, too."""
    try:
        return decode_event(subject, data)
    except UNREADABLE:
        if not flaws.is_void(sequence):
            raise
        place = subjects.parse_workload_event(subject)
        return Decoded(stand_in(place.tenant, place.id), True)
