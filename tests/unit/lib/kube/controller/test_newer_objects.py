"""Answers and watches, in any order: nobody is told what is older after what is newer."""

import random

import pytest

from berthmaster.lib.kube.controller.newer_objects import AHEAD_S, NewerObjects, ObjectChange
from berthmaster.lib.kube.objects import Metadata, Object

KEY = ("toys", "a")


def thing(version: int | str, life: int = 1) -> Object:
    meta = Metadata(namespace="toys", name="a", uid=f"life-{life}", resource_version=str(version))
    return Object(metadata=meta)


class Reader:
    """A mirror of one object, and a core that it feeds."""

    def __init__(self) -> None:
        self.ahead = NewerObjects()
        self.mirror: dict[tuple[str, str], Object] = {}
        self.version = "1"
        self.known: Object | None = None  # by the core
        self.heard: list[tuple[str, bool]] = []
        self.now_s = 0.0

    def hear(self, news: list[ObjectChange]) -> None:
        for found, gone in news:
            self.known = None if gone else found
            self.heard.append((found.metadata.resource_version, gone))

    def answer(self, found: Object) -> None:
        self.hear(self.ahead.on_answer(found, self.mirror, self.version, self.now_s))

    def tell(self, found: Object, *, gone: bool = False) -> None:
        self.version = found.metadata.resource_version
        if gone:
            self.mirror.pop(KEY, None)
        else:
            self.mirror[KEY] = found
        self.hear(self.ahead.on_watched(found, gone, self.now_s))

    def list_now(self, found: Object | None, version: int) -> None:
        """As the mirror tells a list: what differs, what is gone, and that it is complete."""
        before = self.mirror.get(KEY)
        if before is not None and (found is None or before.metadata.uid != found.metadata.uid):
            del self.mirror[KEY]
            self.hear(self.ahead.on_watched(before, True, self.now_s))
        if found is not None and found != before:
            self.mirror[KEY] = found
            self.hear(self.ahead.on_watched(found, False, self.now_s))
        self.version = str(version)
        self.hear(self.ahead.on_listed(self.mirror, self.version))


def test_an_answer_is_heard_at_once_and_its_echo_is_no_news() -> None:
    reader = Reader()
    reader.tell(thing(10))
    reader.answer(thing(11))
    reader.tell(thing(11))
    reader.tell(thing(12))
    assert reader.heard == [("10", False), ("11", False), ("12", False)]


def test_an_answer_that_comes_after_what_followed_is_not_heard() -> None:
    reader = Reader()
    reader.tell(thing(10))
    reader.tell(thing(12))
    reader.answer(thing(11))
    reader.tell(thing(13), gone=True)
    reader.answer(thing(11))
    assert reader.known is None
    assert reader.heard == [("10", False), ("12", False), ("13", True)]


def test_what_the_watch_tells_after_a_newer_answer_is_not_heard() -> None:
    reader = Reader()
    reader.tell(thing(10))
    reader.answer(thing(13))
    reader.tell(thing(11))
    reader.tell(thing(12))
    assert reader.heard == [("10", False), ("13", False)]
    reader.answer(thing(12))  # of another write
    reader.tell(thing(13))
    reader.tell(thing(14), gone=True)
    assert reader.heard == [("10", False), ("13", False), ("14", True)]


def test_what_was_made_and_is_gone_before_the_next_list_does_not_stay() -> None:
    reader = Reader()
    reader.answer(thing(10))
    reader.list_now(None, 9)  # begun before it was made
    assert reader.known == thing(10)
    reader.list_now(None, 12)
    assert reader.heard == [("10", False), ("10", True)]


def test_of_another_life_both_ends_are_told() -> None:
    reader = Reader()
    reader.tell(thing(10))
    reader.answer(thing(11))
    reader.list_now(thing(15, life=2), 16)
    assert reader.heard == [("10", False), ("11", False), ("11", True), ("15", False)]

    reader.answer(thing(20, life=3))
    reader.tell(thing(18, life=2), gone=True)
    reader.tell(thing(20, life=3))
    assert reader.heard[4:] == [("15", True), ("20", False)]


@pytest.mark.parametrize("told", [[thing(3)], [thing(3), thing(4)]])
def test_a_server_that_was_restored_is_believed_after_a_while(told: list[Object]) -> None:
    reader = Reader()
    reader.tell(thing(10))
    reader.answer(thing(11))
    reader.now_s += AHEAD_S
    for one in told:
        reader.tell(one)
    assert reader.known == told[-1]


def test_versions_that_cannot_be_compared_are_told_as_the_watch_does() -> None:
    reader = Reader()
    reader.tell(thing("a9"))
    reader.answer(thing("b1"))
    reader.tell(thing("a1"))
    assert reader.heard == [("a9", False), ("a1", False)]


@pytest.mark.parametrize("seed", range(40))
def test_in_any_order_nothing_older_is_heard_later_and_the_last_is_known(seed: int) -> None:
    """A server's history is told once by a watch, with lists between, and in part by answers that
    come whenever they like."""
    rng = random.Random(seed)
    for _ in range(50):
        history = _history(rng)
        reader, at = Reader(), 0
        slow: list[Object] = []  # answers on their way
        written = 0
        while at < len(history) or slow:
            written = max(written, at)
            choice = rng.random()
            if choice < 0.3 and written < len(history):
                found, gone = history[written]
                written += 1
                if not gone:
                    slow.append(found)
            elif choice < 0.5 and slow:
                reader.answer(slow.pop(rng.randrange(len(slow))))
            elif choice < 0.9 and at < len(history):
                found, gone = history[at]
                at += 1
                reader.tell(found, gone=gone)
            elif at < len(history):  # a list; the watch goes on after it
                at = rng.randint(at, len(history))
                if at:
                    found, gone = history[at - 1]
                    version = int(found.metadata.resource_version)
                    reader.list_now(None if gone else found, version)
        found, gone = history[-1]
        reader.list_now(None if gone else found, 1000)
        assert reader.known == (None if gone else found), (seed, history, reader.heard)
        versions = [int(version) for version, _ in reader.heard]
        assert versions == sorted(versions), (seed, history, reader.heard)


def _history(rng: random.Random) -> list[tuple[Object, bool]]:
    """An object made, changed and deleted, perhaps more than once."""
    out: list[tuple[Object, bool]] = []
    life, there = 0, False
    for number in range(rng.randint(1, 9)):
        version = 10 + 2 * number
        gone = there and rng.random() < 0.3
        if not there:
            life, there = life + 1, True
        out.append((thing(version, life), gone))
        there = not gone
    return out
