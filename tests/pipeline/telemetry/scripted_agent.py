"""The agent over a source that hangs while a file exists: `python scripted_agent.py FILE [flags]`.

The test's own entry: nothing that is shipped can be told to do this.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from berthmaster.messages.telemetry import GpuReading, TelemetrySource
from berthmaster.runtime.log import Log
from berthmaster.runtime.service import run
from berthmaster.telemetry.service import service
from berthmaster.telemetry.settings import TelemetrySettings
from berthmaster.telemetry.source import NodeReading, Source

LONGEST_S = 60.0


class Hanging:
    """One GPU, read only while nothing holds it up."""

    kind: TelemetrySource = "nvml"

    def __init__(self, obstacle: Path) -> None:
        self._obstacle = obstacle

    def read(self, now_s: float) -> Sequence[NodeReading]:
        end_s = time.monotonic() + LONGEST_S
        while self._obstacle.exists() and time.monotonic() < end_s:
            time.sleep(0.01)
        return (NodeReading("", (GpuReading(index=0, uuid="GPU-a", model="T4"),)),)

    def close(self) -> None:
        pass


def opener(settings: TelemetrySettings, log: Log) -> Source:
    return Hanging(Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(run(service(opener), sys.argv[2:], os.environ))
