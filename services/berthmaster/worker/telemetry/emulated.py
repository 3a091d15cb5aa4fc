"""The source "emulated": GPUs that do not exist, to try the agent without GPUs.

Each GPU goes through phases (idle, working, working hard) with durations and loads drawn from a
seed. Memory is allocated at the start of a phase, power follows the load, and temperature follows
power with a delay, all with some noise. Equal seeds give equal samples. The emulator handles whole
clusters whose telemetry follows placements.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from berthmaster.lib.messages.telemetry import GpuProcess, GpuReading, TelemetrySource
from berthmaster.worker.telemetry.core.source import NodeReading


class Model(NamedTuple):
    """Limits of a GPU model, rounded from its data sheet."""

    name: str
    memory_mib: int
    power_w: float
    idle_w: float
    clock_mhz: int
    memory_clock_mhz: int


MODELS: Final = MappingProxyType(
    {
        "t4": Model("Tesla T4", 15_360, 70, 10, 1590, 5001),
        "p100": Model("Tesla P100-PCIE-16GB", 16_384, 250, 28, 1328, 715),
        "v100": Model("Tesla V100-SXM2-32GB", 32_768, 300, 42, 1530, 877),
        "a10": Model("NVIDIA A10", 23_028, 150, 17, 1695, 6251),
        "a100": Model("NVIDIA A100-SXM4-80GB", 81_920, 400, 55, 1410, 1593),
        "h100": Model("NVIDIA H100 80GB HBM3", 81_559, 700, 70, 1980, 2619),
    }
)

_AMBIENT_C = 30.0
_HEAT_C = 45.0  # above ambient, at full power
_COOLING = 0.1  # share of the temperature difference covered in one read
_PHASE_READS = (20, 240)
_LOADS = ((0.0, 0.0), (25.0, 70.0), (85.0, 99.0))


@dataclass
class _State:
    load_percent: float = 0.0
    memory_mib: int = 0
    temperature_c: float = _AMBIENT_C
    reads_left: int = 0
    pid: int = 0


class EmulatedSource:
    """A node full of emulated GPUs of one model."""

    kind: TelemetrySource = "emulated"

    def __init__(self, *, node: str, gpus: int, model: str, seed: int) -> None:
        self._model = MODELS[model]
        self._random = random.Random(f"{seed}/{node}")
        self._uuids = [_uuid(f"{seed}/{node}/{index}") for index in range(gpus)]
        self._states = [_State() for _ in range(gpus)]

    def read(self, now_s: float) -> Sequence[NodeReading]:
        """Advance every GPU by one step. ``now_s`` is unused."""
        gpus = tuple(self._step(index) for index in range(len(self._states)))
        return (NodeReading("", gpus),)

    def close(self) -> None:
        """Nothing to let go of."""

    def _step(self, index: int) -> GpuReading:
        model, chance, state = self._model, self._random, self._states[index]
        if state.reads_left == 0:
            self._next_phase(state)
        state.reads_left -= 1
        busy = state.load_percent > 0
        use = state.load_percent + chance.gauss(0, 3) if busy else 0.0
        utilization = round(min(100.0, max(0.0, use)))
        share = utilization / 100
        power_w = model.idle_w + share * 0.9 * (model.power_w - model.idle_w) + chance.gauss(0, 1)
        goal_c = _AMBIENT_C + _HEAT_C * power_w / model.power_w
        state.temperature_c += _COOLING * (goal_c - state.temperature_c)
        process = GpuProcess(
            pid=state.pid, memory_mib=state.memory_mib, sm_percent=float(utilization)
        )
        return GpuReading(
            index=index,
            uuid=self._uuids[index],
            model=model.name,
            memory_total_mib=model.memory_mib,
            memory_used_mib=state.memory_mib if busy else 4,
            utilization_percent=float(utilization),
            memory_bandwidth_percent=float(round(utilization * 0.55)),
            power_w=round(power_w, 1),
            power_limit_w=model.power_w,
            temperature_c=float(round(state.temperature_c)),
            sm_clock_mhz=model.clock_mhz if busy else model.clock_mhz // 5,
            memory_clock_mhz=model.memory_clock_mhz,
            throttle_reasons=() if busy else ("gpu_idle",),
            ecc_corrected=0,
            ecc_uncorrected=0,
            processes=(process,) if busy else (),
        )

    def _next_phase(self, state: _State) -> None:
        chance = self._random
        low, high = chance.choice(_LOADS)
        state.load_percent = chance.uniform(low, high)
        state.memory_mib = int(self._model.memory_mib * chance.uniform(0.1, 0.95))
        state.reads_left = chance.randint(*_PHASE_READS)
        state.pid = chance.randint(2_000, 4_000_000)


def _uuid(text: str) -> str:
    """Shaped as a driver's: the same text, the same GPU."""
    digits = hashlib.sha256(text.encode()).hexdigest()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"
