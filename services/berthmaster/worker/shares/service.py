"""`berth serve shares`: offer fractions of a node's GPUs as a device plugin (as root).

::

    berth serve shares                       MPS where it is installed, else time slicing
    berth serve shares --way mps             exit code 3 where MPS is not installed

The plugin offers ``berthmaster.io/gpu-milli``, 1000 for each GPU, and limits each pod to its share
by MPS. Without MPS the resource is ``berthmaster.io/gpu-milli.shared``: pods take turns, without a
limit. The plugin speaks to the kubelet only, neither to NATS nor to an API server.

GPUs have one owner. The plugin ends with exit code 3 if another device plugin offers NVIDIA's GPUs,
another process has the plugin's socket or lock, or a foreign MPS daemon answers in its folder. An
owner that comes later makes all devices unhealthy, so that no new pod starts.
"""

import asyncio
import fcntl
import os
from typing import Final

from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.periodic import beats, unless_stopped
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.worker.shares import mps
from berthmaster.worker.shares.core.gpus import Driver
from berthmaster.worker.shares.core.shares import COMMON_FILES, Gpu, Places, Way
from berthmaster.worker.shares.interception import PACE_S, Interception
from berthmaster.worker.shares.kubelet import (
    PLUGINS,
    POD_RESOURCES,
    Plugin,
    Registered,
    Unreachable,
    keep_registered,
    other_owner,
)
from berthmaster.worker.shares.mps import Daemon
from berthmaster.worker.shares.settings import SharesSettings

CHECK_S: Final = 10.0  # from one check of GPUs, MPS daemons and other owners to the next
BEAT_S: Final = 1.0  # from one look at the kubelet's socket to the next
DRIVER_LIMIT_S: Final = 60.0  # a driver without persistence wakes each GPU for seconds


class Shares:
    """Brings driver, daemons and kubelet together."""

    def __init__(
        self,
        ctx: Context[SharesSettings],
        driver: Driver,
        gpus: dict[str, Gpu],
        plugin: Plugin,
        daemons: dict[str, Daemon],
    ) -> None:
        self._ctx = ctx
        self._settings = ctx.settings
        self._driver = driver
        self._gpus = gpus
        self._plugin = plugin
        self._daemons = daemons
        self._faults: dict[str, str] = {}
        self._owner = ""
        self._registered: Registered | None = None
        self._has_offered = False
        self._registrations = ctx.metrics.counter(
            "registrations", "Registrations at the kubelet, one more after each of its restarts"
        )
        self._health = ctx.metrics.gauge("gpus", "GPUs by health", ["health"])

    async def run(self) -> None:
        """Serve until asked to stop. Raises CannotStart beside another owner."""
        stopping = self._ctx.stopping
        self.show()
        for daemon in self._daemons.values():
            self._ctx.spawn(daemon.keep(CHECK_S, stopping, self.show), name="mps")
        self._ctx.spawn(self._check_gpus(), name="gpus")
        self._ctx.spawn(self._check_owners(), name="owners")
        async for _ in beats(BEAT_S, stopping):
            await self._stay_registered()
        await self._plugin.close()

    def show(self) -> None:
        """Publish the usable GPUs to kubelet, operators and Prometheus."""
        sick = {uuid: why for uuid in self._gpus if (why := self._why(uuid))}
        self._plugin.show(sick)
        self._health.labels("healthy").set(len(self._gpus) - len(sick))
        self._health.labels("unhealthy").set(len(sick))
        told = "; ".join(f"{uuid}: {why}" for uuid, why in sorted(sick.items()))
        self._ctx.health.ready("gpus", not sick, told[:1000])

    def _why(self, uuid: str) -> str:
        if self._owner:
            return f"another device plugin offers this node's GPUs as {self._owner}"
        daemon = self._daemons.get(uuid)
        return self._faults.get(uuid, "") or (daemon.why if daemon is not None else "")

    async def _stay_registered(self) -> None:
        if any(daemon.why == mps.STARTING for daemon in self._daemons.values()):
            return  # a GPU that is offered as unhealthy at first would fail pods
        try:
            now = await keep_registered(
                self._plugin, self._settings.kubelet_dir / PLUGINS, self._be_alone, self._registered
            )
        except Unreachable as error:
            self._registered = None
            self._ctx.health.ready("kubelet", False, str(error))
            return
        if now != self._registered:
            self._registered, self._has_offered = now, True
            self._registrations.inc()
            self._ctx.log.info("registered", resource=self._plugin.resource)
            self._ctx.health.ready("kubelet", True, note=f"offers {self._plugin.resource}")

    async def _be_alone(self) -> None:
        """Raise CannotStart beside another owner, unless pods may have shares already."""
        self._owner = await other_owner(self._settings.kubelet_dir / POD_RESOURCES, self._gpus)
        if self._owner and not self._has_offered:
            raise CannotStart(
                f"another device plugin offers this node's GPUs as {self._owner}; GPUs have one "
                "owner: remove that plugin from this node, or this one"
            )
        self.show()

    async def _check_owners(self) -> None:
        async for _ in beats(CHECK_S, self._ctx.stopping):
            if self._registered is None:
                continue
            try:
                owner = await other_owner(self._settings.kubelet_dir / POD_RESOURCES, self._gpus)
            except Unreachable:
                continue  # the last state stays; the kubelet's part reports an unreachable kubelet
            if owner != self._owner:
                self._ctx.log.warning("other owner changed", resource=owner)
                self._owner = owner
                self.show()

    async def _check_gpus(self) -> None:
        async for _ in beats(CHECK_S, self._ctx.stopping):
            faults = asyncio.to_thread(self._driver.faults, tuple(self._gpus.values()))
            asking = asyncio.create_task(faults)
            done, _ = await asyncio.wait({asking}, timeout=DRIVER_LIMIT_S)
            if not done:
                self._take(dict.fromkeys(self._gpus, "driver: no answer"))
            self._take(await asking)

    def _take(self, faults: dict[str, str]) -> None:
        for uuid, why in faults.items():
            if self._faults.get(uuid) != why:
                self._ctx.log.warning("gpu unhealthy", gpu=uuid, why=why)
        self._faults = faults
        self.show()


def way_of(settings: SharesSettings) -> Way:
    """Choose how shares are held here. Raises CannotStart."""
    if settings.way in ("time-slicing", "intercept"):
        return settings.way
    if mps.is_installed():
        return "mps"
    if settings.way == "mps":
        raise CannotStart(
            f"no program {mps.PROGRAM} here; NVIDIA's driver brings it (in a container "
            "by its runtime), or set --way time-slicing, which holds nobody to a share"
        )
    return "time-slicing"


def lock(settings: SharesSettings) -> int:
    """Take the node's lock, held until the process ends. Raises CannotStart."""
    path = settings.state_dir / "lock"
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        held = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotStart(f"{path}: another berth serve shares runs on this node") from None
    except OSError as error:
        raise CannotStart(f"{path}: {error.strerror}") from error
    return held


async def main(ctx: Context[SharesSettings]) -> None:
    """Check for other owners of the GPUs, then share them."""
    settings = ctx.settings
    ctx.health.ready("kubelet", False, "not registered yet")
    held = lock(settings)
    try:
        await _share(ctx)
    finally:
        os.close(held)


async def _share(ctx: Context[SharesSettings]) -> None:
    settings = ctx.settings
    driver = await unless_stopped(asyncio.to_thread(Driver), ctx.stopping)
    if driver is None:
        return
    found, left_out = driver.gpus()
    for why in left_out:
        ctx.log.warning("gpu left out", why=why)
    if not found:
        raise CannotStart("no GPU here can be shared" + "".join(f"; {why}" for why in left_out))
    gpus = {gpu.uuid: gpu for gpu in found}
    way = way_of(settings)
    if way == "time-slicing":
        ctx.log.warning(
            "shares are not held", why="GPUs are time sliced: pods take turns, and nothing holds "
            "a pod to its compute or memory"
        )  # fmt: skip
    daemons = {}
    shm = settings.state_dir / "shm"
    if way == "mps":
        shm.mkdir(parents=True, exist_ok=True)
        shm.chmod(0o1777)  # for any user of pods
        for gpu in found:
            daemon = Daemon(gpu, settings.state_dir, ctx.log, ctx.metrics)
            await daemon.prepare()
            daemons[gpu.uuid] = daemon
    interception = Interception(settings.state_dir / "cuda", driver, settings.burst_milli)
    if way == "intercept":
        ctx.log.warning(
            "shares are held by libberthcuda", why="experimental: a process that does not load "
            "the library is not held"
        )  # fmt: skip
        interception.install()
        ctx.spawn(_pace(ctx, interception), name="pace")
    files = tuple(name for name in COMMON_FILES if (settings.devices_dir / name).exists())
    places = Places(
        str(settings.devices_dir),
        files,
        pipes=str(settings.state_dir / "mps"),
        shm=str(shm),
        accounts=str(interception.accounts),
        library=str(interception.library),
        preload=str(interception.preload),
    )
    granted = interception.grant if way == "intercept" else lambda share: None
    plugin = Plugin(way, gpus, places, ctx.log, ctx.metrics, granted)
    await Shares(ctx, driver, gpus, plugin, daemons).run()


async def _pace(ctx: Context[SharesSettings], interception: Interception) -> None:
    async for _ in beats(PACE_S, ctx.stopping):
        interception.pace(await asyncio.to_thread(interception.measure))


SERVICE = Service("shares", SharesSettings, main)
