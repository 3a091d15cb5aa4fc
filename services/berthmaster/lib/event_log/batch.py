"""One atomic batch: several messages of one stream, all stored or none, without gaps."""

import secrets
from collections.abc import Sequence

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import NotConnected

Part = tuple[str, bytes, dict[str, str]]  # subject, data, headers (guards)


async def send_batch(conn: Connection, parts: Sequence[Part], *, timeout_s: float) -> int:
    """The sequence of the last one. Raises BusError, and ValueError for an empty batch."""
    if not conn.connected:
        raise NotConnected("the server is away")  # parts that are kept for it would be no batch
    batch = secrets.token_hex(12)
    for number, (subject, data, guards) in enumerate(parts, 1):
        headers = guards | {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        if number < len(parts):
            await conn.publish(subject, data, headers=headers)
            continue
        headers["Nats-Batch-Commit"] = "1"
        return await conn.store(subject, data, timeout_s=timeout_s, headers=headers)
    raise ValueError("an empty batch")
