"""A fleet that a test speaks for, and a reader of the scores that come of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest import mock

from msgspec.structs import replace

from berthmaster.control.scorer import service
from berthmaster.control.scorer.service import main
from berthmaster.control.scorer.settings import ScorerSettings, rules_of
from berthmaster.lib.messages.families import DEAD_LETTERS, FLEET_FACTS, encode
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    NodeGone,
    NodeReport,
)
from berthmaster.lib.messages.records import DeadLetter
from berthmaster.lib.messages.telemetry import NodeTelemetry
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.facts import FactWriter
from berthmaster.lib.runtime.service import Context
from tests.bus.shells import running
from tests.support.patience import Hung, hang_s, patient, until


@asynccontextmanager
async def scorer(
    url: str, *, refresh_s: float = 60.0, mix_pods: float = 50.0, **settings: Any
) -> AsyncIterator[Context[ScorerSettings]]:
    """A scorer on this server, in this process."""
    given = patient(ScorerSettings, "scorer", nats_url=url, http_port=-1, **settings)
    rules = replace(rules_of(given), dead_band=0.0, refresh_s=refresh_s, mix_pods=mix_pods)
    with mock.patch.object(service, "rules_of", return_value=rules):
        async with running("scorer", given, main) as ctx:
            yield ctx


@contextmanager
def scorer_process(url: str, *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A scorer as a process of its own, as `berth serve` starts it."""
    program = "import sys; from berthmaster.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "scorer", "--nats-url", url, *flags],
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(hang_s())


class Fleet:
    """Writes facts as reporters do, and hears every score."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.writer = FactWriter(conn)  # of stamps
        self.scores: list[ClusterScore] = []
        self.heard_s: list[float] = []  # by the event loop's clock
        self.letters: list[DeadLetter] = []

    async def start(self) -> "Fleet":
        await self.writer.begin(subjects.ALL_FLEET)
        await self.conn.subscribe(subjects.fleet_facts("score"), self._on_score)
        await self.conn.subscribe(subjects.dead("scorer"), self._on_letter)
        return self

    def _on_score(self, subject: str, data: bytes) -> None:
        fact = FLEET_FACTS.decode(data)
        assert isinstance(fact, ClusterScore)
        assert subject == subjects.score(fact.cluster)
        self.scores.append(fact)
        self.heard_s.append(asyncio.get_running_loop().time())

    def _on_letter(self, subject: str, data: bytes) -> None:
        self.letters.append(DEAD_LETTERS.decode(data))

    async def put(self, fact: ClusterAlive | ClusterProfile | NodeReport | NodeGone) -> None:
        """Store it as the newest of its subject."""
        fact = replace(fact, stamp=self.writer.stamp())
        if isinstance(fact, ClusterAlive):
            subject = subjects.alive(fact.cluster)
        elif isinstance(fact, ClusterProfile):
            subject = subjects.profile(fact.cluster)
        else:
            subject = subjects.node(fact.cluster, fact.node)
        await self.conn.store(subject, encode(fact))  # as the door does

    async def measure(self, told: NodeTelemetry) -> None:
        told = replace(told, observed_at_s=self.conn.now())
        await self.conn.publish(subjects.telemetry(told.cluster, told.node), encode(told))

    def last(self, cluster: str = "east") -> ClusterScore | None:
        """The newest score of a cluster, by its stamp."""
        mine = [score for score in self.scores if score.cluster == cluster]
        return max(mine, key=lambda score: score.stamp, default=None)

    async def score(self, cluster: str = "east", **expected: Any) -> Any:
        """Wait until a cluster's newest score has these values; the score."""

        def fits() -> bool:
            score = self.last(cluster)
            return score is not None and all(
                getattr(score, name) == value for name, value in expected.items()
            )

        try:
            await until(fits)
        except Hung:
            raise AssertionError(f"{expected} is not in {self.last(cluster)}") from None
        return self.last(cluster)
