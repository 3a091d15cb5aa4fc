"""Holds shares by libberthcuda: a file a container, and the pace of launches. Experimental."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.worker.shares.account import Account, make, rate_of, targets
from berthmaster.worker.shares.core.gpus import Driver
from berthmaster.worker.shares.core.shares import (
    LIBRARY_INSIDE,
    SEPARATOR,
    WHOLE,
    Share,
    memory_mib,
)

PACE_S: Final = 0.5  # from one measurement to the next; the driver samples some six times a second
_MIB: Final = 2**20


class Interception:
    """Intercepted shares of this node."""

    def __init__(self, folder: Path, driver: Driver, burst_milli: int) -> None:
        self.library = folder / "libberthcuda.so"
        self.preload = folder / "ld.so.preload"
        self.accounts = folder / "accounts"
        self._driver = driver
        self._burst_milli = burst_milli
        self._accounts: dict[str, dict[str, Account]] = {}  # by GPU, by share
        self._newest_us: dict[str, int] = {}
        self._looked_s = time.monotonic()

    def install(self) -> None:
        """Put the library where containers get it from, and find shares of before. Raises
        CannotStart."""
        built = sorted(Path(__file__).parent.glob("_berthcuda*.so"))
        if not built:
            raise CannotStart(
                "libberthcuda is not here: it is built with a C compiler where berthmaster is "
                "installed from source; the image of shares has it"
            )
        self.accounts.mkdir(parents=True, exist_ok=True)
        fresh = self.library.with_suffix(".new")
        fresh.write_bytes(built[0].read_bytes())
        fresh.chmod(0o755)
        fresh.rename(self.library)
        self.preload.write_text(f"{LIBRARY_INSIDE}\n")
        self.preload.chmod(0o644)
        for path in self.accounts.iterdir():
            try:
                self._open(path)
            except (OSError, ValueError):
                path.unlink()  # half written when we were killed

    def _open(self, path: Path) -> None:
        uuid = path.name.partition(SEPARATOR)[0]
        self._accounts.setdefault(uuid, {})[path.name] = Account(path)

    def grant(self, share: Share) -> None:
        """Create the file of a share before its container starts."""
        if share.milli == WHOLE:
            return
        path = self.accounts / share.name
        before = self._accounts.get(share.gpus[0].uuid, {}).pop(share.name, None)
        if before is not None:
            before.close()
        make(path, memory_mib(share) * _MIB, share.milli)
        self._open(path)

    def measure(self) -> dict[str, dict[int, float]]:
        """Ask the driver what each process used of each GPU: percents by process. Blocks."""
        found = {}
        for uuid in list(self._accounts):
            found[uuid], self._newest_us[uuid] = self._driver.sm_percents(
                uuid, self._newest_us.get(uuid, 0)
            )
        return found

    def pace(self, measured: Mapping[str, Mapping[int, float]]) -> None:
        """Set how fast the launches of each share go on."""
        now_s = time.monotonic()
        seconds, self._looked_s = max(0.001, now_s - self._looked_s), now_s
        for uuid, percents in measured.items():
            accounts = self._accounts[uuid].values()
            living = [one for one in accounts if next(one.processes(), None) is not None]
            readings = [one.read(percents, seconds) for one in living]
            for one, reading, target in zip(
                living, readings, targets(readings, self._burst_milli), strict=True
            ):
                one.rate = rate_of(reading, target, one.rate)
