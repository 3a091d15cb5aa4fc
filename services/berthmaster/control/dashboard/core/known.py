"""The page's latest knowledge of the fleet, its jobs and its services. Pure."""

from berthmaster.control.dashboard.core.grid import Grid
from berthmaster.control.dashboard.core.jobs import Jobs
from berthmaster.control.dashboard.core.pulse import Pulse
from berthmaster.control.dashboard.core.seen import Services
from berthmaster.control.dashboard.core.series import AllSeries
from berthmaster.lib.engine.fleetview.rows import FleetView
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import ClusterAlive, ClusterScore, FleetFact, QueueReport
from berthmaster.lib.messages.quality import QualityReport


class Stored:
    """A fact with the server's time stamp."""

    __slots__ = ("fact", "stored_at_s")

    def __init__(self, fact: FleetFact, stored_at_s: float) -> None:
        self.fact = fact
        self.stored_at_s = stored_at_s


class Known:
    """Latest values. Pairs include the time of the store or arrival, by the server's clock."""

    def __init__(self) -> None:
        self.grids: dict[str, Grid] = {}
        self.fleet = FleetView()
        self.jobs = Jobs()
        self.series = AllSeries()
        self.pulse = Pulse()
        self.services = Services()
        self.queues: dict[str, QueueSetting] = {}
        self.kueue: dict[tuple[str, str], QueueReport] = {}
        self.quality: dict[str, tuple[QualityReport, float]] = {}
        self.alive: dict[str, ClusterAlive] = {}
        self.scores: dict[str, tuple[ClusterScore, float]] = {}
        self.unknown_readings = 0
        self.damage: tuple[str, ...] = ()  # data losses of the logs, as text
        self.letters: dict[str, tuple[float, str]] = {}  # service -> its newest dead letter
