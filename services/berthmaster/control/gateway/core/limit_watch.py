"""Find jobs that use more than their GPU fractions for two minutes. Pure.

``take`` gets each usage message of a job. After ``LASTS`` messages in a row above a limit, the
gateway records this in the log once for each attempt and limit. The job continues: the event, a
metric and `berth audit` name the job.
"""

from collections import Counter
from typing import Final

from berthmaster.control.gateway.core.job_verbs import Order
from berthmaster.lib.lifecycle.gpu_shares import share_use
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.telemetry import JobFigures
from berthmaster.lib.messages.workload import Exceeded, ExceededLimit

LASTS: Final = 4  # messages: two minutes
WHO: Final = "gateway: measured"


class LimitWatch:
    def __init__(self) -> None:
        self._rows: dict[Key, Counter[ExceededLimit]] = {}  # messages in a row above a limit
        self._wanted: dict[Key, Order] = {}

    @property
    def exceeding(self) -> Counter[ExceededLimit]:
        """Return the number of running jobs above each limit now."""
        rows = self._rows.values()
        return Counter(limit for row in rows for limit, count in row.items() if count >= LASTS)

    def forget(self) -> None:
        """Drop everything after a replacement of the log."""
        self._rows.clear()
        self._wanted.clear()

    def follow(self, work: Workload) -> None:
        """Drop a workload after its run."""
        if work.state is not State.RUNNING:
            self._rows.pop(work.key, None)
            self._wanted.pop(work.key, None)

    def take(self, told: JobFigures, work: Workload) -> None:
        """Take one message about a job."""
        if work.state is not State.RUNNING or work.request is None or told.ended:
            return
        if (told.cluster, told.attempt) != (work.cluster, work.attempt) or told.disagreements:
            return
        use = share_use(work.request, told.use)
        if use is None:
            return
        row = self._rows.pop(work.key, Counter[ExceededLimit]())
        now = Counter({limit: row[limit] + 1 for limit in use.exceeded})
        if now:
            self._rows[work.key] = now
        for limit in use.exceeded:
            if now[limit] >= LASTS and limit not in work.exceeded:
                of_memory = limit == "memory"
                granted = use.granted_mib if of_memory else use.granted_milli
                used = use.used_mib if of_memory else use.used_milli
                self._wanted[work.key] = Order(
                    work.tenant,
                    work.id,
                    "exceeded",
                    WHO,
                    exceeded=Exceeded(limit, granted or 0, used or 0),
                    attempt=work.attempt,
                )

    def due(self) -> list[Order]:
        """Return the changes to record in the log."""
        wanted, self._wanted = self._wanted, {}
        return list(wanted.values())
