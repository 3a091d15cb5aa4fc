"""Read the stored ends of logs of failed attempts, to recognise a lack of GPU memory.

The executor sends the end of a pod's log after the pod's failure, some seconds before or after the
event. So each failed attempt is checked several times. A log that cannot be read by then leaves the
fault as an exit.
"""

from berthmaster.control.usage.core.profiles import ProfileRecord, Profiles
from berthmaster.lib.messages.door import MAX_LOG_ENDS
from berthmaster.lib.messages.families import LOG_ENDS as READ_END
from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import LOG_ENDS


async def look_at_log_ends(conn: Connection, profiles: Profiles, now_s: float) -> None:
    """Check the failed attempts that are due. Raises nothing."""
    for record in profiles.log_ends_due(now_s):
        profiles.on_log_ends(record, await _ends_of(conn, record))


async def _ends_of(conn: Connection, record: ProfileRecord) -> list[bytes]:
    found: list[bytes] = []
    pods = 1
    pod = 0
    while pod < min(pods, MAX_LOG_ENDS):
        subject = subjects.log_end(record.tenant, record.id, record.attempt, record.cluster, pod)
        try:
            message = await last_message(conn, LOG_ENDS, subject)
            end = READ_END.decode(message.data) if message is not None else None
        except (BusError, *UNREADABLE):
            return found
        if end is not None:
            found.append(end.data)
            pods = max(pods, end.pods)
        elif pod == 0:
            pods = MAX_LOG_ENDS  # perhaps only the first pod's end is missing
        pod += 1
    return found
