"""The public Python API: submit jobs, query them, follow their events. `berth` uses the API too.

::

    async with Client.connect("nats://127.0.0.1:4222", tenant="vision") as berth:
        reply = await berth.submit(JobRequest(id="train-7", pod_sets=(PodSet(gpus=8),)))
        async for seen in berth.watch(workload="train-7", since=0):
            print(seen.event)

``SyncClient`` has the same methods for programs without asyncio.

Belongs here: requests over the bus, their time limits and retries. Not here: code that only a
terminal needs, or a rule that the services lack.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from berthmaster.client.client import Client
    from berthmaster.client.errors import (
        BerthError,
        NotAllowedError,
        RefusedError,
        TooLargeError,
        UnavailableError,
        UnexpectedReplyError,
    )
    from berthmaster.client.following import SeenDead, SeenDecision, SeenEvent, SeenFact
    from berthmaster.client.log_lines import LogLine, lines_of
    from berthmaster.client.sync import SyncClient

_FOUND_IN = {
    "Client": "client",
    "SyncClient": "sync",
    **dict.fromkeys(("LogLine", "lines_of"), "log_lines"),
    **dict.fromkeys(("SeenDead", "SeenDecision", "SeenEvent", "SeenFact"), "following"),
}

__all__ = [
    "BerthError",
    "Client",
    "LogLine",
    "NotAllowedError",
    "RefusedError",
    "SeenDead",
    "SeenDecision",
    "SeenEvent",
    "SeenFact",
    "SyncClient",
    "TooLargeError",
    "UnavailableError",
    "UnexpectedReplyError",
    "lines_of",
]


def __getattr__(name: str) -> object:
    """Import a name on first use, so that a program that only catches an error loads no
    connection."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_FOUND_IN.get(name, 'errors')}")
    return getattr(module, name)
