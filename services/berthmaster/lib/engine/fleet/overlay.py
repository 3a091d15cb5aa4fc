"""Tentative charges on the fleet, reverted at the end.

A draft of a decision or a question charges the fleet through an overlay, each charge under a name.
At the end of the ``with`` block all remaining charges are reverted, also after an exception. The
fleet never keeps capacity without a holder.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from types import TracebackType

from berthmaster.lib.engine.fleet.fleet import Fleet, Holding


class Overlay:
    """Tentative charges on the fleet. A context manager."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._charged: dict[Hashable, tuple[Sequence[Holding], int]] = {}

    def __enter__(self) -> "Overlay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for sign in (+1, -1):
            charged = [held for held, way in self._charged.values() if way == sign]
            self._fleet.lend(list(chain.from_iterable(charged)), -sign)
        self._charged.clear()

    def take(self, name: Hashable, holdings: Sequence[Holding]) -> None:
        self._charge(name, holdings, +1)

    def free(self, name: Hashable, holdings: Sequence[Holding]) -> None:
        """Treat held capacity as free."""
        self._charge(name, holdings, -1)

    def give_back(self, name: Hashable) -> None:
        """Revert the charge of this name, if any."""
        holdings, sign = self._charged.pop(name, ((), 0))
        self._fleet.lend(holdings, -sign)

    @contextmanager
    def without(self, names: Iterable[Hashable]) -> Iterator[None]:
        """Inside, as if these had not been charged."""
        aside = [(name, self._charged[name]) for name in names]
        for name, _ in aside:
            self.give_back(name)
        try:
            yield
        finally:
            for name, (holdings, sign) in aside:
                self._charge(name, holdings, sign)

    def _charge(self, name: Hashable, holdings: Sequence[Holding], sign: int) -> None:
        if name in self._charged:
            raise ValueError(f"{name!r} is charged already")
        self._charged[name] = (holdings, sign)
        self._fleet.lend(holdings, sign)
