"""The kubelet's side: the device plugin that it calls, and calls to it.

A restarting kubelet forgets its plugins, removes all sockets in its folder and creates its own. So
the socket is watched, and the plugin listens and registers again after a change.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from berthmaster.lib.accelerators.table import VENDOR
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.protobuf import BadMessage
from berthmaster.worker.shares.core import wire
from berthmaster.worker.shares.core.shares import (
    RESOURCES,
    Gpu,
    Places,
    Refused,
    Share,
    Way,
    device_ids,
    grant_of,
    preferred,
    share_of,
)

PLUGINS: Final = "device-plugins"  # in the kubelet's folder
POD_RESOURCES: Final = "pod-resources/kubelet.sock"  # the same
KUBELET: Final = "kubelet.sock"
ENDPOINT: Final = "berthmaster-shares.sock"
CALL_LIMIT_S: Final = 5.0
_SERVICE: Final = "v1beta1.DevicePlugin"
_REGISTER: Final = "/v1beta1.Registration/Register"
_ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"
_MAX_BYTES: Final = 16 * 1024 * 1024  # of one message; 16 GPUs are 0.8 MiB

Call = grpc.aio.ServicerContext[bytes, bytes]
Unary = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class Unreachable(Exception):
    """The kubelet did not answer; the text says why."""


async def call(path: Path, method: str, body: bytes) -> bytes:
    """Call the kubelet at a socket. Raises Unreachable."""
    options = [("grpc.max_receive_message_length", _MAX_BYTES)]
    async with grpc.aio.insecure_channel(f"unix://{path}", options=options) as channel:
        try:
            ask: Unary = channel.unary_unary(method)
            answer = await ask(body, timeout=CALL_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name} {error.details() or ''}".rstrip()
            raise Unreachable(f"{path}: {why}"[:300]) from error
    return answer


async def other_owner(path: Path, gpus: Mapping[str, Gpu]) -> str:
    """Return the resource of another plugin with NVIDIA's GPUs; "" = none. Raises Unreachable."""
    try:
        owned = wire.owned(await call(path, _ALLOCATABLE, b""))
    except BadMessage as error:
        raise Unreachable(f"{path}: {error}") from error
    ours = set(RESOURCES.values())
    for one in owned:
        theirs = one.resource.startswith(VENDOR) or any(
            device.startswith(uuid) for device in one.devices for uuid in gpus
        )
        if one.resource not in ours and one.devices and theirs:
            return one.resource
    return ""


class Plugin:
    def __init__(
        self,
        way: Way,
        gpus: Mapping[str, Gpu],
        places: Places,
        log: Log,
        metrics: Metrics,
        granted: Callable[[Share], None],
    ) -> None:
        """``granted`` is called for each share before its container may start."""
        self.resource = RESOURCES[way]
        self._way = way
        self._gpus = gpus
        self._places = places
        self._granted = granted
        self._log = log
        self._sick: Mapping[str, str] = {}
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._grants = metrics.counter("grants", "Answers to Allocate, by result", ["result"])

    def show(self, sick: Mapping[str, str]) -> None:
        """Tell the kubelet which GPUs are not to be used, by UUID."""
        if sick == self._sick:
            return
        self._sick = dict(sick)
        self._changed.set()
        self._changed = asyncio.Event()

    async def listen(self, folder: Path) -> None:
        """Listen at a fresh socket. Raises CannotStart where another process has it."""
        await self.close()
        path = folder / ENDPOINT
        if _listens(path):
            raise CannotStart(f"{path}: another process listens there; end it first")
        path.unlink(missing_ok=True)
        server = grpc.aio.server()
        handlers: dict[str, Callable[[bytes, Call], Any]] = {
            "GetDevicePluginOptions": self._options,
            "GetPreferredAllocation": self._prefer,
            "Allocate": self._allocate,
        }
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(one) for name, one in handlers.items()
        }
        methods["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self._list)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
        try:
            server.add_insecure_port(f"unix://{path}")
        except RuntimeError as error:
            raise CannotStart(f"{path}: cannot listen there: {error}") from error
        await server.start()
        self._server = server

    async def register(self, folder: Path) -> None:
        """Make ourselves known to the kubelet. Raises Unreachable."""
        await call(folder / KUBELET, _REGISTER, wire.registration(ENDPOINT, self.resource))

    async def close(self) -> None:
        """Stop listening; the kubelet then counts no device of ours."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    # Calls of the kubelet

    async def _options(self, request: bytes, context: Call) -> bytes:
        return wire.OPTIONS

    async def _list(self, request: bytes, context: Call) -> AsyncIterator[bytes]:
        while True:
            changed = self._changed
            yield wire.listing(
                (device, uuid not in self._sick)
                for uuid, gpu in self._gpus.items()
                for device in device_ids(gpu)
            )
            await changed.wait()

    async def _prefer(self, request: bytes, context: Call) -> bytes:
        return await self._answer(
            context,
            lambda: wire.preference(
                preferred(one.available, one.taken, one.size) for one in wire.wishes(request)
            ),
        )

    async def _allocate(self, request: bytes, context: Call) -> bytes:
        def granted() -> bytes:
            shares = [share_of(devices, self._gpus) for devices in wire.allocations(request)]
            for share in shares:
                gpus = [gpu.uuid for gpu in share.gpus]
                self._granted(share)
                self._log.info("share granted", gpus=gpus, milli=share.milli, way=self._way)
            return wire.grants(grant_of(share, self._way, self._places) for share in shares)

        answer = await self._answer(context, granted)
        self._grants.labels("granted").inc()
        return answer

    async def _answer(self, context: Call, work: Callable[[], bytes]) -> bytes:
        try:
            return work()
        except Refused as error:
            self._grants.labels("refused").inc()
            self._log.warning("share refused", why=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except BadMessage as error:
            self._grants.labels("unreadable").inc()
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


Registered = tuple[tuple[int, int, int], tuple[int, int, int]]


def identity(path: Path) -> tuple[int, int, int] | None:
    """Return the identity of a socket file; None without one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


async def keep_registered(
    plugin: Plugin,
    folder: Path,
    before: Callable[[], Awaitable[None]],
    known: Registered | None,
) -> Registered:
    """Listen and register if the kubelet or our socket is another than the last time. ``before`` is
    awaited first. Raises Unreachable, CannotStart."""
    kubelet, ours = identity(folder / KUBELET), identity(folder / ENDPOINT)
    if kubelet is None:
        raise Unreachable(f"{folder / KUBELET}: there is no such socket: no kubelet runs")
    if known is not None and (kubelet, ours) == known:
        return known
    await before()
    await plugin.listen(folder)
    await plugin.register(folder)
    ours = identity(folder / ENDPOINT)
    if ours is None:  # removed by a starting kubelet
        raise Unreachable(f"{folder / ENDPOINT}: was removed while it was registered")
    return kubelet, ours


def _listens(path: Path) -> bool:
    """Return whether a process listens: a killed one leaves its socket file."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
