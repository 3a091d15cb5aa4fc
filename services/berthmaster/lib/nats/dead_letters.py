"""Dead letters: messages that cannot be decoded or handled are stored with the reason.

Operators read them, so bodies are cut, and secrets of a known form are removed
(lib/runtime/redact.py).
"""

from typing import Final

from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.records import DeadLetter
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.redact import excerpt, redact, redact_bytes

MAX_BODY_BYTES: Final = 64 * 1024
MAX_REASON_CHARS: Final = 2000


async def store_dead_letter(
    conn: Connection,
    *,
    service: str,
    subject: str,
    reason: str,
    body: bytes,
    stream: str = "",
    sequence: int = 0,
    workload: str = "",
) -> bool:
    """Store one message with the reason. Return False on failure: only the log line remains
    then.
    """
    subject, reason = redact(subject), excerpt(reason, MAX_REASON_CHARS)
    conn.log.error(
        "dead letter", subject=subject, reason=reason, sequence=sequence, workload=workload
    )
    letter = DeadLetter(
        service=service,
        subject=subject,
        reason=reason,
        at_s=conn.now(),
        stream=stream,
        sequence=sequence,
        workload=workload,
        body=redact_bytes(body, MAX_BODY_BYTES),
    )
    try:
        await conn.store(subjects.dead(service), encode(letter), timeout_s=2.0)
    except BusError as error:
        conn.log.error("dead letter not stored", why=str(error))
        return False
    return True
