"""Queues out of files and flags: what is read, and what is told."""

import json
from collections.abc import Sequence
from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from berthmaster.cli.queue import screen as queues
from berthmaster.cli.queue.settings import changed, in_order, overcommitted_in, read_settings
from berthmaster.cli.values import WrongInput
from berthmaster.lib.messages.api import QueueStanding
from berthmaster.lib.messages.control import QueueAllows, QueueAmounts, QueueSetting
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.fleet import FleetFact
from tests.support.builders import alive, node
from tests.unit.cli.screens import screen

RESEARCH = QueueSetting(
    queue="research",
    priority=5,
    weight=2.0,
    guarantee_gpu_milli=8000,
    capability_gpu_milli=16_000,
    resources={"gpu/H100": QueueAmounts(guarantee=4000), "cpu": QueueAmounts(capability=64_000)},
    max_job_gpu_milli=8000,
    max_running_jobs=20,
)
OTHER = QueueSetting(queue="other", max_waiting_jobs=100)


@pytest.mark.parametrize(
    "data",
    [
        b"[" + encode(RESEARCH) + b"," + encode(OTHER) + b"]",
        encode(RESEARCH) + b"\n" + encode(OTHER) + b"\n",
    ],
)
def test_a_file_holds_settings_as_they_are_listed(data: bytes) -> None:
    assert read_settings(data, "queues.json") == [RESEARCH, OTHER]


def test_a_file_needs_no_more_than_what_is_not_usual() -> None:
    body = json.dumps({"queue": "a", "resources": {"gpu/H100": {"deserved": 2000}}}).encode()
    setting = QueueSetting(queue="a", resources={"gpu/H100": QueueAmounts(deserved=2000)})
    assert read_settings(body, "-") == [setting]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            b'[{"queue":"a"},{"queue":"b","wieght":2}]',
            "f.json, queue 2: wieght is 2; right is no field of this name; did you mean weight?",
        ),
        (
            b'{"queue":"a","guarantee_gpu_milli":2,"capability_gpu_milli":1}',
            (
                "f.json, queue 1: guarantee_gpu_milli is 2; "
                "right is at most capability_gpu_milli, which is 1"
            ),
        ),
        (b'[{"queue":"a"},{"queue":"a"}]', "f.json, queue 2: 'a' is there twice"),
    ],
)
def test_all_of_a_file_is_checked_before_any_of_it_is_sent(data: bytes, told: str) -> None:
    with pytest.raises(WrongInput) as caught:
        read_settings(data, "f.json")
    assert str(caught.value) == told


def test_guarantees_beyond_what_the_fleet_has_are_told() -> None:
    nodes: list[FleetFact] = [
        node(gpus=4),
        node(name="n2", gpus=2, model="NVIDIA-H100-80GB-HBM3"),
        alive(),
    ]
    assert overcommitted_in([RESEARCH, OTHER], nodes) == [
        "guarantees of 8 GPUs are promised, the fleet has 6 GPUs",
        "guarantees of 4 H100 are promised, the fleet has 2 H100",
    ]
    by_kueue = QueueSetting(queue="k", via="worker", guarantee_gpu_milli=99_000)
    assert overcommitted_in([OTHER, by_kueue], nodes) == []


def test_flags_change_what_they_name_and_keep_the_rest() -> None:
    flags = {"deserved": "12", "max_job": "none", "max_running": "3", "max_waiting": "none"}
    assert changed(RESEARCH, False, flags) == QueueSetting(
        queue="research",
        priority=5,
        weight=2.0,
        guarantee_gpu_milli=8000,
        deserved_gpu_milli=12_000,
        capability_gpu_milli=16_000,
        resources=RESEARCH.resources,
        max_running_jobs=3,
    )
    with pytest.raises(WrongInput, match=r"--max-running '-1': right is a number of jobs"):
        changed(RESEARCH, False, {"max_running": "-1"})


def test_flags_say_how_clusters_rank_for_a_queue_and_take_it_back() -> None:
    flags = {"profile": "spread", "score_weight": ("fit=0", "idle=2.5")}
    ranked = changed(RESEARCH, False, flags)
    assert ranked == replace(RESEARCH, profile="spread", weights={"fit": 0.0, "idle": 2.5})
    again = changed(ranked, False, {"score_weight": ("room=1",)})
    assert again == replace(ranked, weights={"room": 1.0})
    assert changed(again, False, {"priority": 6}) == replace(again, priority=6)
    back = {"profile": "none", "score_weight": ("none",)}
    assert changed(again, False, back) == RESEARCH
    with pytest.raises(WrongInput, match="'fit' is no weight; right is PART=N"):
        changed(RESEARCH, False, {"score_weight": ("fit",)})


def test_a_file_says_how_clusters_rank_for_a_queue() -> None:
    data = b'{"queue":"a","profile":"spread","weights":{"fit":2}}'
    assert read_settings(data, "f.json") == [
        QueueSetting(queue="a", profile="spread", weights={"fit": 2.0})
    ]
    with pytest.raises(WrongInput, match=r'profile is "sturdy"; right is one of "balanced"'):
        read_settings(b'{"queue":"a","profile":"sturdy"}', "f.json")


def test_the_list_shows_amounts_and_who_governs() -> None:
    out = StringIO()
    by_kueue = QueueSetting(queue="k", via="worker", profile="soonest", weights={"fit": 2.5})
    Console(file=out, width=160).print(queues.queues([RESEARCH, OTHER, by_kueue]))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[1:] == [
        "research 5 2 8, 4 H100 - 16, 64 CPUs 8 20 - everybody open",
        "k 0 1 - - - - - - everybody open, by Kueue (worker), ranks by soonest (fit 2.5)",
        "other 0 1 - - - - - 100 everybody open",
    ]


def test_what_its_requests_may_ask_for_is_listed_kept_and_taken_back() -> None:
    flags = {"max_priority": "10", "allow_images": "reg/a/, reg/b:1", "allow_tolerations": ""}
    bounded = changed(RESEARCH, False, flags)
    assert bounded.max_priority == 10
    assert bounded.allows == QueueAllows(images=("reg/a/", "reg/b:1"), tolerations=())
    more = changed(bounded, False, {"allow_models": "L4", "allow_images": "any"})
    assert more.allows == QueueAllows(gpu_models=("L4",), tolerations=())
    assert changed(more, False, {"max_priority": "none"}).max_priority is None
    with pytest.raises(WrongInput, match="--max-priority 'high'"):
        changed(more, False, {"max_priority": "high"})


def test_a_file_is_set_in_an_order_in_which_each_may_be() -> None:
    top = QueueSetting(queue="top", guarantee_gpu_milli=8000)
    child = QueueSetting(queue="child", parent="top", guarantee_gpu_milli=8000)
    assert in_order([child, top], []) == [top, child]
    # Both get less: the child first, or the parent would have too little for it.
    less = [replace(each, guarantee_gpu_milli=4000) for each in (top, child)]
    assert in_order(less, [top, child]) == less[::-1]
    # Both go: the child first.
    gone = [replace(each, deleted=True) for each in (top, child)]
    assert in_order(gone, [top, child]) == gone[::-1]
    with pytest.raises(WrongInput) as caught:
        in_order([replace(top, parent="child"), child], [])
    assert str(caught.value) == (
        "queue 'top': parent is \"child\"; right is a queue that was set; there is none of this "
        "name"
    )


def test_queues_are_listed_as_a_tree_with_what_they_have() -> None:
    settings = [
        QueueSetting(queue="b-child", parent="top"),
        QueueSetting(queue="a-child", parent="top", deserved_gpu_milli=2000),
        QueueSetting(queue="top", deserved_gpu_milli=4000),
        QueueSetting(queue="other", priority=1),
    ]
    accounts = [
        QueueStanding(queue="top", used_gpu_milli=5000, borrowed_gpu_milli=1000),
        QueueStanding(queue="a-child", used_gpu_milli=5000, borrowed_gpu_milli=3000),
    ]
    out = StringIO()
    Console(file=out, width=160).print(queues.queues(settings, accounts))
    rows = [line.rstrip() for line in out.getvalue().splitlines()]
    assert [row[: row.index(" ", 2) if row[0] != " " else 9].rstrip() for row in rows[1:]] == [
        "other",
        "top",
        "  a-child",
        "  b-child",
    ]
    assert rows[0].split()[4:8] == ["DESERVED", "LIMIT", "USED", "BORROWED"]
    assert [row.split()[4:8] for row in rows[2:]] == [
        ["4", "-", "5", "1"],
        ["2", "-", "5", "3"],
        ["-", "-", "?", "?"],
    ]


def test_a_flag_has_a_queues_jobs_stop_each_other_which_is_listed() -> None:
    on = changed(OTHER, False, {"preempts_equals": "yes"})
    assert on == replace(OTHER, preempts_equals=True)
    assert changed(on, False, {"priority": 1}) == replace(on, priority=1)
    assert changed(on, False, {"preempts_equals": "no"}) == OTHER
    out = StringIO()
    Console(file=out, width=160).print(queues.queues([on]))
    assert "open, stops equals" in out.getvalue()


def names_at_80_columns(shown: RenderableType, names: Sequence[str]) -> None:
    lines = screen(shown).splitlines()
    assert all(len(line) <= 80 for line in lines)
    tables = "\n".join(lines).split("\n\n")
    assert len(tables) == 2
    for table in tables:
        assert table.startswith("QUEUE ")
        for name in names:
            assert f"\n{name[:20]}" in table or f"\n  {name[:18]}" in table


def test_on_80_columns_every_name_number_and_state_is_shown() -> None:
    long = "research-and-development-of-large-models"
    amounts = {"cpu": QueueAmounts(guarantee=64_000, capability=128_000)}
    settings = [
        QueueSetting(
            queue=long,
            guarantee_gpu_milli=128_000,
            deserved_gpu_milli=256_000,
            capability_gpu_milli=512_000,
            weight=2.5,
            priority=1000,
            tenants=("alpha", "beta", "gamma-team"),
            resources=amounts,
            max_job_gpu_milli=64_000,
            max_running_jobs=1000,
        ),
        QueueSetting(queue="team-a", parent=long, held=True),
        QueueSetting(queue="x" * 63, max_waiting_jobs=1_000_000),
    ]
    accounts = [QueueStanding(queue=long, used_gpu_milli=512_500, borrowed_gpu_milli=256_000)]
    shown = queues.queues(settings, accounts)
    names_at_80_columns(shown, [long, "team-a", "x" * 63])
    text = screen(shown)
    said = ("128,", "256", "512,", "512.5", "BORROWED", "2.5", "1000000", "gamma-team", "held")
    for each in said:
        assert each in text
    names_at_80_columns(queues.queues(settings), [long, "team-a", "x" * 63])


def test_a_tenant_too_sees_the_names_of_its_queues_on_80_columns() -> None:
    told = [QueueStanding(queue="research-and-development"), QueueStanding(queue="team-a")]
    names_at_80_columns(queues.standings(told), ["research-and-development", "team-a"])
