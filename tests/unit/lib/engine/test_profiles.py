"""Profiles and weights: which counts, and that the table says what its names promise."""

from pathlib import Path

import pytest

from berthmaster.lib.engine.scoring.profiles import (
    BALANCED,
    COMPONENTS,
    HUB_PROFILES,
    PROFILES,
    Said,
    Weights,
    chosen,
    weighted,
)

SPREAD, PACK = PROFILES["spread"], PROFILES["pack"]


def test_every_weight_is_of_a_part_and_within_what_people_may_say() -> None:
    for name, weights in PROFILES.items():
        assert weights, name
        assert [each for each in COMPONENTS if each in weights] == list(weights)
        assert all(-10 <= weight <= 10 for weight in weights.values())
        assert all(type(weight) is float for weight in weights.values())


@pytest.mark.parametrize(
    ("profile", "part"),
    [
        ("balanced", "fit"),
        ("pack", "fit"),
        ("spread", "room"),
        ("soonest", "wait"),
        ("cheapest", "price"),
    ],
)
def test_a_profile_counts_most_what_its_name_promises(profile: str, part: str) -> None:
    record = PROFILES[profile]
    assert max(record, key=lambda name: abs(record[name])) == part
    assert sum(abs(weight) for weight in record.values()) < 2.5 * record[part]


CASES: dict[str, tuple[Said, Said, str, tuple[str, Weights]]] = {
    "nobody says anything": (Said(), Said(), BALANCED, (BALANCED, PROFILES[BALANCED])),
    "the resolver's own": (Said(), Said(), "spread", ("spread", SPREAD)),
    "the queue's over it": (Said(), Said("pack"), "spread", ("pack", PACK)),
    "the request's over all": (Said("spread"), Said("pack"), "cheapest", ("spread", SPREAD)),
    "single weights of the queue": (
        Said(),
        Said("", {"price": 3}),
        BALANCED,
        (BALANCED, {**PROFILES[BALANCED], "price": 3.0}),
    ),
    "the request's weights over the queue's": (
        Said("", {"fit": 0}),
        Said("pack", {"fit": 9, "room": 1}),
        BALANCED,
        ("pack", {"room": 1.0, "locality": 2.0}),
    ),
    "a profile of its own leaves the queue's weights": (
        Said("spread", {"idle": -1}),
        Said("pack", {"room": -9}),
        BALANCED,
        ("spread", {**SPREAD, "idle": -1.0}),
    ),
    "a profile of a newer version": (Said("greenest"), Said("pack"), BALANCED, ("pack", PACK)),
    "all of a newer version": (
        Said("greenest", {"carbon": 5.0, "idle": 2.0}),
        Said("bluest", {"water": 5.0}),
        "reddest",
        (BALANCED, {**PROFILES[BALANCED], "idle": 2.0}),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_request_goes_over_the_queue_and_that_over_the_resolver(case: str) -> None:
    request, queue, usual, right = CASES[case]
    assert chosen(request, queue, usual, PROFILES) == right


def test_balanced_counts_what_it_always_did_where_nothing_else_is_known() -> None:
    balanced = PROFILES[BALANCED]
    assert [balanced.get(name) for name in ("fit", "room", "idle", "price")] == [4, 0.5, 0.5, None]
    assert weighted(balanced, {}) == balanced


def test_the_page_on_scores_says_what_the_tables_here_say() -> None:
    page = (Path(__file__).parents[4] / "docs" / "concepts" / "scores.md").read_text()
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]
    first = [row[0] for row in rows].index("component") + 1
    parts = rows[first : first + len(COMPONENTS)]
    assert [row[0] for row in parts] == list(COMPONENTS)
    at = [row[0] for row in rows].index("profile")  # behind tables of examples
    header, *profiles = rows[at:]
    assert header[2:] == [part for part in COMPONENTS if part not in ("tier", "headroom")]
    told = {
        row[0]: {name: float(cell) for name, cell in zip(header[2:], row[2:], strict=True) if cell}
        for row in profiles
    }
    assert told == PROFILES
    on_hubs = HUB_PROFILES[BALANCED].items()
    assert ", ".join(f"`{part}` {weight:g}" for part, weight in on_hubs) in page


@pytest.mark.parametrize("name", [name for name in HUB_PROFILES if HUB_PROFILES[name]["tier"]])
def test_on_a_hub_a_better_tier_goes_before_all_else_that_a_profile_counts(name: str) -> None:
    others = {k: w for k, w in HUB_PROFILES[name].items() if k != "tier"}
    a_tier = HUB_PROFILES[name]["tier"] * 100 / 3
    assert a_tier > sum(abs(weight) * 100 for weight in others.values()) > 0
    assert "room" not in others
    assert set(HUB_PROFILES) == set(PROFILES)
