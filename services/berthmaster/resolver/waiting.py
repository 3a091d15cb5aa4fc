"""Who waits, and who is next: by queue priority, then the job's own, then age.

Jobs of one queue and one shape form a line: if its first does not fit, none of them does, and the
line is passed over until something changes. An order is a tuple, so that comparing two is cheap.
"""

import heapq
from collections.abc import Generator

from berthmaster.engine.needs import shape_of
from berthmaster.lifecycle.fold import Key, Workload
from berthmaster.messages.workload import JobRequest

MAX_STALE = 64  # entries of a line that nobody waits under any more, beside as many as wait
Order = tuple[int, int, int]  # -queue priority, -priority, sequence of submission: least goes first


class Line:
    """The waiting jobs of one queue and shape."""

    __slots__ = ("_heap", "blocked_at", "id", "members", "queue", "request")

    def __init__(self, line_id: "LineId", request: JobRequest) -> None:
        self.id = line_id
        self.queue = line_id[0]
        self.request = request  # of any member: for its shape, all are alike
        self.members: dict[Key, Order] = {}
        self._heap: list[tuple[Order, Key]] = []
        self.blocked_at = -1  # the growth at which its first did not fit

    def add(self, key: Key, order: Order) -> None:
        self.members[key] = order
        heapq.heappush(self._heap, (order, key))
        if len(self._heap) > 2 * len(self.members) + MAX_STALE:  # behind a first that never goes
            self._heap[:] = [(order, key) for key, order in self.members.items()]
            heapq.heapify(self._heap)

    def ordered(self) -> Generator[tuple[Order, Key], None, None]:
        """Its members, first first, they stay in. Stale entries are dropped on the way."""
        heap = self._heap
        taken: list[tuple[Order, Key]] = []
        try:
            while heap:
                order, key = heap[0]
                heapq.heappop(heap)
                if self.members.get(key) != order or (taken and taken[-1] == (order, key)):
                    continue  # it left, waits under another order, or came back to this one
                taken.append((order, key))
                yield order, key
        finally:
            for entry in taken:
                heapq.heappush(heap, entry)


LineId = tuple[str, bytes]  # queue, shape


class Waiting:
    """All lines."""

    def __init__(self) -> None:
        self._lines: dict[LineId, Line] = {}
        self._line_of: dict[Key, LineId] = {}

    def __len__(self) -> int:
        return len(self._line_of)

    def __contains__(self, key: Key) -> bool:
        return key in self._line_of

    def add(self, workload: Workload, queue_priority: int) -> None:
        """It waits from now on, or waits under another order."""
        request = workload.request
        if request is None:
            return
        key = workload.key
        line_id = self._line_of.get(key) or (request.queue, shape_of(request))
        line = self._lines.get(line_id)
        if line is None:
            line = self._lines[line_id] = Line(line_id, request)
        line.add(key, (-queue_priority, -workload.priority, workload.submitted_sequence))
        self._line_of[key] = line_id

    def remove(self, key: Key) -> None:
        """It does not wait any more."""
        line_id = self._line_of.pop(key, None)
        if line_id is None:
            return
        line = self._lines[line_id]
        del line.members[key]
        if not line.members:
            del self._lines[line_id]

    def lines(self) -> list[Line]:
        """Every line with somebody in it."""
        return list(self._lines.values())

    def line_of(self, key: Key) -> Line | None:
        """Where a job waits."""
        line_id = self._line_of.get(key)
        return self._lines[line_id] if line_id is not None else None

    def position(self, key: Key) -> int | None:
        """Its place in the order over all lines, 1 = next. Linear in the number of all."""
        line = self.line_of(key)
        if line is None:
            return None
        mine = line.members[key]
        lines = self._lines.values()
        lines = self._lines.values()
        return 1 + sum(order < mine for each in lines for order in each.members.values())
