"""Properties of ClusterProfiles: amounts, and only names of our own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.hub.ocm.core.properties import (
    MAX_BYTES,
    gap,
    merged,
    number,
    observed_at,
    ours,
    wanted,
)
from berthmaster.hub.ocm.core.scores import FIXED_NAMES
from berthmaster.lib.kube.multicluster import Property
from berthmaster.lib.kube.objects import timestamp
from berthmaster.lib.ocm.core.pace import LARGE, SMALL
from berthmaster.lib.ocm.core.view import view
from tests.unit.hub.ocm.builders import T0_S, score

B = "berthmaster.io/"
AT = timestamp(T0_S)


def test_a_live_cluster_has_amounts_and_points() -> None:
    found = score(free=12.5, gangs={"Tesla T4": 9, "NVIDIA A100": 3}, idle=74.256)
    told = wanted(view(found, silent_s=0))
    points = {name for name in told if name.startswith(f"{B}score.")}
    assert points == {f"{B}score.{name}" for name in FIXED_NAMES}
    assert {name: told[name] for name in told.keys() - points} == {
        f"{B}freshness": "fresh",
        f"{B}gpu-free": "12.5",
        f"{B}gpu-idle-percent": "74.26",
        f"{B}gpu-fragmentation-percent": "25",
        f"{B}gpu-largest-gang": "9",
        f"{B}gpu-largest-gang.Tesla-T4": "9",
        f"{B}gpu-largest-gang.NVIDIA-A100": "3",
        f"{B}nodes": "2",
    }
    assert told[f"{B}score.gpuClusterAvailable"] == "25"


def test_what_is_not_known_is_nothing_or_unknown_never_the_last_amount() -> None:
    told = wanted(view(score(free=12), silent_s=30))
    assert told[f"{B}freshness"] == "nottold"
    assert (told[f"{B}gpu-free"], told[f"{B}gpu-largest-gang"]) == ("0", "0")
    assert told[f"{B}gpu-idle-percent"] == told[f"{B}nodes"] == "unknown"
    assert told[f"{B}score.gpuClusterAvailable"] == "-100"
    assert not [name for name in told if name.startswith(f"{B}gpu-largest-gang.")]


@given(st.floats())
def test_a_number_is_short_or_unknown(amount: float) -> None:
    text = number(amount)
    assert text == "unknown" or abs(float(text) - amount) <= 0.01
    assert len(text) <= 20


def test_every_name_and_value_keeps_the_limits_of_the_api() -> None:
    found = score(gangs={"x" * 300: 10**9, "日本": 1})
    for name, value in wanted(view(found, silent_s=0)).items():
        assert 0 < len(name) <= 253
        assert 0 < len(value) <= 1024


def test_a_difference_counts_in_points_of_a_score() -> None:
    def told(**rest: float) -> dict[str, str]:
        return wanted(view(score(**rest), silent_s=0))  # type: ignore[arg-type]

    now = view(score(free=12), silent_s=0)
    assert gap(told(free=12), told(free=12), now) == 0
    # One GPU of 20 is 10 points, told three times over: as amount, as gang and as score.
    assert gap(told(free=11), told(free=12), now) == 10
    assert gap(told(idle=50), told(idle=51), now) == pytest.approx(0.4)
    assert gap({}, told(), now) == LARGE
    assert gap(told() | {f"{B}old": "1"}, told(), now) == SMALL
    assert gap(told() | {f"{B}nodes": "7"}, told(), now) == 5
    assert gap(told() | {f"{B}gpu-free": "nonsense"}, told(), now) == SMALL
    lost = view(score(), silent_s=30)
    assert gap(told(), wanted(lost), lost) == LARGE


def test_only_our_own_names_are_touched_and_others_keep_their_order() -> None:
    listed = [
        Property(name="zone", value="b", last_observed_time="2026-01-01T00:00:00Z"),
        Property(name=f"{B}gpu-free", value="3", last_observed_time="2026-01-02T00:00:00Z"),
        Property(name="id", value="a"),
    ]
    assert ours(listed) == {f"{B}gpu-free": "3"}
    assert observed_at(listed) == "2026-01-02T00:00:00Z"
    assert observed_at(listed[:1]) is None
    assert merged(listed, {f"{B}gpu-free": "5"}, AT) == (
        [
            {"name": "zone", "value": "b", "lastObservedTime": "2026-01-01T00:00:00Z"},
            {"name": "id", "value": "a"},
            {"name": f"{B}gpu-free", "value": "5", "lastObservedTime": AT},
        ],
        "",
    )


@pytest.mark.parametrize(
    "absurd",
    [
        [Property(name=f"p{n}", value="x" * 100) for n in range(10_000)],
        [Property(name="p", value="x" * 1024 * 1024)],
    ],
)
def test_absurdly_many_properties_of_others_are_left_alone(absurd: list[Property]) -> None:
    listed, why = merged(absurd, {f"{B}gpu-free": "5"}, AT)
    assert listed == []
    assert why.startswith(f"{len(absurd)} properties of others, ")
    assert sum(len(one.value) for one in absurd) > MAX_BYTES
