"""The emulator: run worker clusters without hardware, each with all of its agents."""

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from berthmaster.lab.emulator.cluster import EmulatedCluster
from berthmaster.lab.emulator.disturbance import Nature
from berthmaster.lab.emulator.fleets import (
    BUILTIN,
    DEFAULT_CLUSTERS,
    OPENB_NODES,
    ClusterSpec,
    FleetError,
    read_fleet,
)
from berthmaster.lab.emulator.host import Host
from berthmaster.lab.emulator.journal import Journal, JournalError, read_journal
from berthmaster.lab.emulator.logs import EmulatedLogs
from berthmaster.lab.emulator.records import Record
from berthmaster.lab.emulator.reporter import Reporter
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.door_client.service_door import door_answers
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.service_connection import connected
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.periodic import beats
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.lib.runtime.settings import CommonSettings, setting
from berthmaster.worker.executor.core.executor import Executor
from berthmaster.worker.executor.core.limits import Limits
from berthmaster.worker.executor.logs import LogDesk
from berthmaster.worker.executor.shell import Shell

FIGURES_INTERVAL_S = 1.0
CLOSE_LIMIT_S = 3.0
FOREIGN_DURATION_S = 300.0  # mean run time of an unmanaged pod, at any speed
START_LIMIT_S = 60.0  # seconds until all pods of an attempt must run
REPORT_INTERVAL_S = 0.2  # minimum seconds between two reports of one node
REPORTS_PER_S = 500.0  # limit of this process, for nodes with changes of managed pods only
LOG_BYTES_PER_S = 2 * 1024 * 1024
OPENB = "openb"
_PART = re.compile(r"(\d{1,4})/(\d{1,4})")
_TRACES = Path(__file__).parents[5] / "shared" / "traces"
# At --disturbance 1, a fleet of openb's size loses a GPU every few hours and a node every hour.
GPU_DEATHS_PER_HOUR = 1 / 20_000
NODE_FLAPS_PER_HOUR = 1 / 1000
DEAD_GPU_SHARE = 0.002


@dataclass(frozen=True, kw_only=True)
class EmulatorSettings(CommonSettings):
    """Settings of the emulator."""

    fleet: str = setting(
        BUILTIN,
        help=(
            "source of the nodes: a CSV with columns sn,cpu_milli,memory_mib,gpu,model, 'openb'"
            " for the list in the folder BERTH_TRACES, or 'builtin' for the published shape of "
            "cluster-trace-gpu-v2023"
        ),
    )
    clusters: int = setting(
        DEFAULT_CLUSTERS, least=1, most=10_000, help="number of clusters for the nodes"
    )
    nodes: int | None = setting(
        None, least=1, most=1_000_000, help="number of nodes to scale the fleet to, keeping its mix"
    )
    part: str = setting(
        "1/1",
        help="part of the clusters that this process serves: 2/3 = the second of three",
    )
    speed: float = setting(1.0, least=0.001, most=1e9, help="speed-up of pods over their duration")
    seed: int = setting(
        1, help="seed of all random events: the same seed gives the same durations and faults"
    )
    data_dir: Path | None = setting(
        None,
        help="folder in which pods survive this process, a journal per cluster; none = they do not",
    )
    failure_share: float = setting(0.01, least=0, most=1, help="share of attempts whose pods fail")
    foreign_share: float = setting(
        0.05,
        least=0,
        most=0.95,
        help="mean share of GPUs used by unmanaged pods",
    )
    disturbance: float = setting(
        1.0,
        least=0,
        most=1e6,
        help="rate of GPU and node faults, as a multiple of a good data centre's; 0 = never",
    )
    telemetry_interval_s: float = setting(
        1.0, least=0, most=3600, help="seconds between two samples of a node; 0 = no telemetry"
    )


def fleet_of(settings: EmulatorSettings) -> list[ClusterSpec]:
    """Return the clusters of this process. Raises CannotStart."""
    try:
        source = settings.fleet
        if source == OPENB:
            source = str(Path(os.environ.get("BERTH_TRACES", _TRACES)) / OPENB_NODES)
        fleet = read_fleet(source, clusters=settings.clusters, nodes=settings.nodes)
    except FleetError as error:
        raise CannotStart(str(error)) from error
    return _part_of(fleet, settings.part)


def _part_of(fleet: list[ClusterSpec], part: str) -> list[ClusterSpec]:
    found = _PART.fullmatch(part)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise CannotStart(f"--part {part!r}: right is K/N with K from 1 to N, such as 2/3")
    number, parts = int(found[1]), int(found[2])
    if parts > len(fleet):
        raise CannotStart(f"--part {part!r}: the fleet has {len(fleet)} clusters, fewer than parts")
    return fleet[number - 1 :: parts]


def nature_of(settings: EmulatorSettings) -> Nature:
    return Nature(
        seed=settings.seed,
        speed=settings.speed,
        failure_share=settings.failure_share,
        foreign_share=settings.foreign_share,
        foreign_duration_s=FOREIGN_DURATION_S,
        dead_gpu_share=min(1.0, DEAD_GPU_SHARE * settings.disturbance),
        gpu_deaths_per_hour=GPU_DEATHS_PER_HOUR * settings.disturbance,
        node_flaps_per_hour=NODE_FLAPS_PER_HOUR * settings.disturbance,
    )


class Served:
    def __init__(
        self, context: Context[EmulatorSettings], conn: Connection, spec: ClusterSpec, share: float
    ) -> None:
        """Build one cluster. ``share`` is its fraction of the process's nodes. Raises
        CannotStart."""
        settings = context.settings
        self.executor: asyncio.Task[None] | None = None
        self.journal: Journal | None = None
        records: list[Record] = []
        try:
            if settings.data_dir is not None:
                path = settings.data_dir / f"{subjects.token(spec.name)}.journal"
                self.journal = Journal(path)
                records = read_journal(path)
            self.cluster = EmulatedCluster(spec, nature_of(settings), conn.now(), records)
            if self.journal is not None:
                self.cluster.take_journal()  # already in the snapshot
                self.journal.begin(self.cluster.world.snapshot())
        except JournalError as error:
            raise CannotStart(str(error)) from error
        self.host = Host(self.cluster, self.journal, conn.now)
        core = Executor(spec.name, limits=Limits(start_s=START_LIMIT_S))
        self.door = door = DoorClient(conn, spec.name)
        self.desk = LogDesk(door, EmulatedLogs(self.cluster, conn.now), bytes_per_s=LOG_BYTES_PER_S)
        self.shell = Shell(door, core, self.host, logs=self.desk, service=context.name)
        self.reporter = Reporter(
            door,
            self.host,
            report_interval_s=REPORT_INTERVAL_S,
            report_rate_per_s=max(1.0, REPORTS_PER_S * share),
            seed=settings.seed,
        )

    def start(self, context: Context[EmulatorSettings]) -> None:
        """Start all tasks, until the service stops."""
        name, stopping = self.cluster.spec.name, context.stopping
        interval_s = context.settings.telemetry_interval_s
        self.executor = context.spawn(self.shell.run(stopping), name=f"executor of {name}")
        context.spawn(self.desk.run(stopping), name=f"logs of {name}")
        context.spawn(self.reporter.run(stopping), name=f"inventory of {name}")
        context.spawn(self.reporter.keep_alive(stopping), name=f"sign of life of {name}")
        if interval_s:
            context.spawn(self.reporter.measure(interval_s, stopping), name=f"telemetry of {name}")

    async def close(self) -> None:
        """Let the executor finish its work, then stop the time."""
        if self.executor is not None:
            await asyncio.wait({self.executor}, timeout=CLOSE_LIMIT_S)
        await self.desk.close()
        self.host.stop()
        if self.journal is not None:
            self.journal.close()


class EmulatorMetrics:
    def __init__(self, context: Context[EmulatorSettings]) -> None:
        metrics, labels = context.metrics, ("cluster",)
        self._jobs = metrics.gauge("attempts", "Attempts of the executor", labels)
        self._counters = {
            what: metrics.counter(what, text, labels)
            for what, text in (
                ("pods_started", "Pods that kubelets took"),
                ("attempts_refused", "Attempts of which a kubelet refused a pod"),
                ("writes_stored", "Events stored"),
                ("writes_refused", "Writes that came too late"),
                ("writes_unknown", "Writes whose outcome stayed open"),
                ("stories_read", "Workloads read back from the log"),
                ("workloads_frozen", "Workloads with events that this version cannot read"),
                ("reports_sent", "Node reports stored"),
            )
        }
        self._shown: dict[tuple[str, str], int] = {}

    def show(self, served: Served) -> None:
        name, counts = served.cluster.spec.name, served.shell.counts
        self._jobs.labels(name).set(served.shell.core.jobs)
        for what, value in (
            ("pods_started", served.cluster.pods_started),
            ("attempts_refused", served.cluster.attempts_refused),
            ("writes_stored", counts.stored),
            ("writes_refused", counts.refused),
            ("writes_unknown", counts.unknown),
            ("stories_read", counts.reloads),
            ("workloads_frozen", counts.frozen),
            ("reports_sent", served.reporter.reports_sent),
        ):
            before = self._shown.get((name, what), 0)
            self._counters[what].labels(name).inc(value - before)
            self._shown[name, what] = value


async def main(context: Context[EmulatorSettings]) -> None:
    """Run until the service stops."""
    fleet = fleet_of(context.settings)
    clock = subjects.agent(fleet[0].name, "hello")
    async with connected(context, clock_subject=clock) as conn:
        if conn is not None and await door_answers(context, DoorClient(conn, fleet[0].name)):
            await _serve(context, conn, fleet)


async def _serve(
    context: Context[EmulatorSettings], conn: Connection, fleet: Sequence[ClusterSpec]
) -> None:
    nodes = sum(len(spec.nodes) for spec in fleet)
    served = [Served(context, conn, spec, len(spec.nodes) / nodes) for spec in fleet]
    try:
        for one in served:
            one.start(context)
        context.log.info("serving", clusters=[spec.name for spec in fleet], nodes=nodes)
        figures = EmulatorMetrics(context)
        async for _ in beats(FIGURES_INTERVAL_S, context.stopping):
            context.health.ready("bus", conn.connected, "no connection to NATS")
            silent = served[0].door.silent
            context.health.ready("door", not silent, silent)
            for one in served:
                figures.show(one)
    finally:
        await asyncio.gather(*(one.close() for one in served))


SERVICE = Service("emulator", EmulatorSettings, main)
