"""Pages of what clusters hold, put together."""

import random

import pytest

from berthmaster.cli.recover.core import Held
from berthmaster.cli.recover.holdings import Collector
from berthmaster.lib.messages.door import HeldPage, ProvenAttempt

ASKED = "asked"


def attempt(name: str, number: int = 1) -> ProvenAttempt:
    return ProvenAttempt(tenant="team", id=name, attempt=number)


def page(
    number: int,
    *names: str,
    last: bool = False,
    cluster: str = "red",
    listing: str = "one",
    inquiry: str = ASKED,
) -> HeldPage:
    return HeldPage(
        cluster=cluster,
        inquiry=inquiry,
        listing=listing,
        page=number,
        last=last,
        held=tuple(map(attempt, names)),
    )


def names(collector: Collector) -> list[str]:
    return sorted(f"{held.cluster}/{held.attempt.id}" for held in collector.held)


@pytest.mark.parametrize("seed", range(10))
def test_cluster_has_answered_once_all_its_pages_came_in_any_order(seed: int) -> None:
    collector = Collector(ASKED)
    pages = [page(number, f"job-{number}", last=number == 4) for number in range(5)]
    random.Random(seed).shuffle(pages)
    for each in pages:
        assert collector.answered == set()
        collector.take(each)
        collector.take(each)
    assert collector.answered == {"red"}
    assert names(collector) == [f"red/job-{number}" for number in range(5)]


def test_cluster_that_holds_nothing_has_answered() -> None:
    collector = Collector(ASKED)
    collector.take(page(0, last=True))
    assert (collector.answered, collector.held) == ({"red"}, [])


def test_pages_of_two_listings_do_not_add_up() -> None:
    """Its executor was started anew, and lists in another order: job b is in neither page."""
    collector = Collector(ASKED)
    collector.take(page(0, "a", listing="before"))
    collector.take(page(1, "a", last=True, listing="after"))
    assert collector.answered == set()
    collector.take(page(0, "b", listing="after"))
    assert collector.answered == {"red"}
    assert names(collector) == ["red/a", "red/b"]


def test_answers_to_another_inquiry_count_for_nothing() -> None:
    collector = Collector(ASKED)
    collector.take(page(0, "a", last=True, inquiry="another"))
    assert (collector.answered, collector.held) == (set(), [])


def test_held_names_each_attempt_of_a_cluster_once() -> None:
    collector = Collector(ASKED)
    for listing in ("one", "two"):
        collector.take(page(0, "a", last=True, listing=listing))
    collector.take(page(0, "a", last=True, cluster="blue"))
    assert collector.held == [Held("red", attempt("a")), Held("blue", attempt("a"))]
    assert collector.answered == {"red", "blue"}


def test_page_behind_the_last_one_completes_nothing() -> None:
    collector = Collector(ASKED)
    collector.take(page(7))
    collector.take(page(1, last=True))
    assert collector.answered == set()
    collector.take(page(0, last=False, listing="two"))
    collector.take(page(1 << 31, last=True, listing="two"))
    assert collector.answered == set()


def test_collector_takes_no_more_than_its_bound_and_names_the_cluster() -> None:
    collector = Collector(ASKED, most=10)
    collector.take(page(0, "a", "b", last=True, cluster="blue"))  # 3: a page counts, too
    for number in range(7):
        collector.take(page(number))
    assert collector.too_much == ""
    collector.take(page(7, "c"))
    assert collector.too_much.startswith("clusters report 12 attempts and pages; at most 10")
    assert "red reports 9" in collector.too_much
    collector.take(page(8, "d", last=True))
    assert names(collector) == ["blue/a", "blue/b"]


def test_attempts_that_come_again_do_not_count_again() -> None:
    collector = Collector(ASKED, most=100)
    for listing in range(20):
        collector.take(page(0, *"abcdef", last=True, listing=str(listing)))
    assert collector.too_much == ""
