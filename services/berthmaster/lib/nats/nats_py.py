"""The names used of nats-py, imported without aiohttp.

nats-py imports aiohttp for websockets only, and treats aiohttp as optional. The import takes a
quarter of a second of CPU and 20 MiB in each process that has aiohttp installed for other reasons.
So nats-py is imported as if aiohttp were absent. A client that connects by websocket calls
``allow_websockets``.
"""

import importlib
import sys


def allow_websockets() -> None:
    """Import aiohttp for a URL of ws:// or wss://, as nats-py would. Raises ImportError."""
    transport = importlib.import_module("nats.aio.transport")
    for name in ("aiohttp", "multidict"):  # by name, since Berthmaster does not depend on them
        setattr(transport, name, importlib.import_module(name))


def _import_nats() -> None:
    if "aiohttp" in sys.modules:  # the cost is paid already
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment] # `import aiohttp` fails from here on
    try:
        import nats  # noqa: F401 # for its effect on sys.modules
    finally:
        del sys.modules["aiohttp"]


_import_nats()

# isort: split
from nats import errors  # noqa: E402 # after the import without aiohttp
from nats.aio.client import Client  # noqa: E402
from nats.aio.msg import Msg  # noqa: E402
from nats.aio.subscription import Subscription  # noqa: E402

__all__ = ["Client", "Msg", "Subscription", "errors"]
