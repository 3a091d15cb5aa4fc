"""What we use of nats-py, imported in one place: see websockets.py for what must come first."""

from berthmaster.lib.nats import websockets

# isort: split
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

__all__ = [
    "Client",
    "Msg",
    "Subscription",
    "errors",
    "websockets",
]
