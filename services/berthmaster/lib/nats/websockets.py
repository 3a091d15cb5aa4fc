"""Keeps nats-py from importing aiohttp, which it wants for websockets alone: importing this module
imports nats without it.

That is a quarter of a second of CPU and 20 MiB for each process, where aiohttp is installed because
something else of ours needs it. nats-py treats it as optional, so it is told that it is absent. Who
does connect by websocket calls ``allow``.
"""

import importlib
import sys


def allow() -> None:
    """A URL is ws:// or wss://: what nats-py would have imported. Raises ImportError."""
    transport = importlib.import_module("nats.aio.transport")
    for name in ("aiohttp", "multidict"):  # by name: no part of ours depends on them
        setattr(transport, name, importlib.import_module(name))


def _import_nats() -> None:
    if "aiohttp" in sys.modules:  # it is paid for already
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment] # `import aiohttp` fails from here on
    try:
        import nats  # noqa: F401 # for its effect on sys.modules
    finally:
        del sys.modules["aiohttp"]


_import_nats()
