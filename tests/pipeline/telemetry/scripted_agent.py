"""The agent over a source that hangs while a file exists: `python scripted_agent.py FILE [flags]`.

With a FILE that ends in ".open" it hangs while it is opened, else while it is read. The test's own
entry: nothing that is shipped can be told to do this.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from berthmaster.lib.messages.telemetry import GpuReading, TelemetrySource
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.service import run
from berthmaster.worker.telemetry import service as telemetry
from berthmaster.worker.telemetry.core.source import NodeReading, Source
from berthmaster.worker.telemetry.service import service
from berthmaster.worker.telemetry.settings import TelemetrySettings

LONGEST_S = 3600.0
mock.patch.object(telemetry, "READ_LIMIT_S", 0.3).start()


class Hanging:
    """One GPU, read only while nothing holds it up."""

    kind: TelemetrySource = "nvml"

    def __init__(self, obstacle: Path) -> None:
        self._obstacle = obstacle

    def read(self, now_s: float) -> Sequence[NodeReading]:
        wait_until_gone(self._obstacle)
        return (NodeReading("", (GpuReading(index=0, uuid="GPU-a", model="T4"),)),)

    def close(self) -> None:
        pass


def wait_until_gone(obstacle: Path) -> None:
    end_s = time.monotonic() + LONGEST_S
    while obstacle.exists() and time.monotonic() < end_s:
        time.sleep(0.01)


def opener(settings: TelemetrySettings, log: Log) -> Source:
    obstacle = Path(sys.argv[1])
    if obstacle.suffix == ".open":
        wait_until_gone(obstacle)
    return Hanging(obstacle)


if __name__ == "__main__":
    run(service(opener), sys.argv[2:])
