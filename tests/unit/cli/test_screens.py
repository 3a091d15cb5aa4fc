"""What people see, at 80 columns and without colour, whole screens compared."""

from typing import Any

from msgspec.structs import replace

from berthmaster.cli.demo import screen as progress
from berthmaster.cli.demo.load import Account
from berthmaster.cli.demo.stats import Latency, WorkloadSummary
from berthmaster.cli.fleet import screen as fleet
from berthmaster.cli.job import events
from berthmaster.cli.job import screen as workloads
from berthmaster.cli.output import amounts
from berthmaster.cli.whatif import screen as whatif
from berthmaster.lib.engine.fleetview.rows import ClusterRow, NodeRow
from berthmaster.lib.messages.api import (
    DryRunReply,
    Ended,
    GetReply,
    ListReply,
    Moved,
    QueueAccount,
    Rebalanced,
    RecordedEvent,
    WhatifReply,
    WhyReply,
    WorkloadView,
)
from berthmaster.lib.messages.placement import (
    Choice,
    HeldNode,
    PodBinding,
    RankedCluster,
    Reservation,
)
from berthmaster.lib.messages.workload import (
    Claimed,
    Evicted,
    JobRequest,
    PartPlace,
    Placed,
    PodSet,
    Submitted,
    WorkloadEvent,
)
from berthmaster.lib.runtime.visible_text import visible
from tests.unit.cli.screens import screen

NOW_S = 1_700_000_000.0
GANG = JobRequest(
    id="train-7",
    pod_sets=(PodSet(count=2, gpus=8, gpu_models=("A100", "H100"), memory_mib=65536),),
    expected_duration_s=7200,
)
CHOICE = Choice(
    tenant="lab",
    id="train-7",
    attempt=1,
    cluster="berlin",
    pods=(
        PodBinding(pod="main-0", node="b-1", gpus=(0, 1, 2, 3, 4, 5, 6, 7)),
        PodBinding(pod="main-1", node="b-2", gpus=(0, 1, 2, 3, 4, 5, 6, 7)),
    ),
    ranking=(
        RankedCluster(
            cluster="berlin", score=81.25, parts={"fit": 63, "room": 95}, input_age_s=0.4
        ),
        RankedCluster(cluster="paris", score=56.5, parts={"fit": 9, "room": 95}, input_age_s=2),
    ),
    filtered={"oslo": "no such GPU model", "rome": "no such GPU model", "kyiv": "cordoned"},
)


def view(**more: object) -> WorkloadView:
    fields = {"tenant": "lab", "id": "train-7", "state": "queued", "queue": "vision", **more}
    return WorkloadView(**fields)  # type: ignore[arg-type]


def test_jobs_are_a_table_with_the_counts_below() -> None:
    reply = ListReply(
        workloads=(
            view(
                state="running", gpus=16.0, pods=2, cluster="berlin", priority=10,
                submitted_at_s=NOW_S - 3700, cancel_requested=True,
            ),
            view(id="half", gpus=0.5, pods=1, submitted_at_s=NOW_S - 5),
        ),
        counts={"queued": 1, "running": 1, "failed": 0},
        next_before=12,
    )  # fmt: skip
    assert screen(workloads.jobs(reply, NOW_S)) == (
        "ID       STATE                 GPUS  PODS  QUEUE   PRIO  CLUSTER    AGE\n"
        "train-7  running (cancelling)    16     2  vision    10  berlin   1h01m\n"
        "half     queued                 0.5     1  vision     0  -           5s\n"
        "\n"
        "In all: 1 queued · 1 running.\n"
        "Older ones: --before 12"
    )
    assert screen(workloads.jobs(ListReply(), NOW_S)) == "No workloads yet."


def test_a_divided_job_is_a_row_with_the_clusters_of_its_parts() -> None:
    parts = tuple(PartPlace(id=f"train-7--1-{n}", cluster=c, pods=1) for n, c in enumerate("ab"))
    divided = view(state="running", gpus=2.0, pods=2, parts=parts, submitted_at_s=NOW_S - 5)
    assert screen(workloads.jobs(ListReply(workloads=(divided,)), NOW_S)) == (
        "ID       STATE    GPUS  PODS  QUEUE   PRIO  CLUSTER  AGE\n"
        "train-7  running     2     2  vision     0  a, b      5s"
    )
    assert workloads.job_line(divided, NOW_S).plain.endswith("running on a, b")


def test_a_job_is_shown_with_what_it_asked_for_and_its_story() -> None:
    event: dict[str, Any] = {"tenant": "lab", "id": "train-7", "at_s": 0.0, "by": "x"}
    placed = Placed(
        **event, after=4, cluster="berlin", attempt=1, pods=CHOICE.pods, request=GANG, decision=3
    )
    story: tuple[WorkloadEvent, ...] = (
        Submitted(**event, after=0, request=GANG, digest="d"),
        placed,
        Claimed(**event, after=6, cluster="berlin", attempt=1, executor="e-1"),
        Evicted(**event, after=9, cluster="berlin", attempt=1, reason="a GPU died"),
    )
    times = (NOW_S - 60, NOW_S - 59.9955, NOW_S - 59.99, NOW_S - 10)
    reply = GetReply(
        workload=view(
            attempt=1, evictions=1, reason="a GPU died", sequence=9,
            submitted_at_s=NOW_S - 60, changed_at_s=NOW_S - 10,
        ),
        request=GANG,
        story=tuple(
            RecordedEvent(sequence=sequence, stored_at_s=at_s, event=each, void=sequence == 8)
            for sequence, at_s, each in zip((4, 6, 8, 9), times, story, strict=True)
        ),
    )  # fmt: skip
    assert screen(workloads.job(reply, NOW_S)) == (
        "workload   lab/train-7\n"
        "state      queued\n"
        "evicted    a GPU died\n"
        "queue      vision, priority 0\n"
        "attempts   1, evicted 1 time\n"
        "submitted  2023-11-14 22:12:20 UTC (1m00s ago)\n"
        "changed    10s ago (event 9)\n"
        "requests   2 pods of 8 A100 or H100 GPUs, 1 CPU, 64 GiB; for about 2h00m\n"
        "\n"
        "SEQ  TIME (UTC)      AFTER  EVENT      WHAT\n"
        "  4  22:12:20.000           submitted  2 pods of 8 A100 or H100 GPUs, 1 CPU, 64\n"
        "                                       GiB; for about 2h00m; queue default\n"
        "  6  22:12:20.004  4.50 ms  placed     berlin: b-1[0-7] b-2[0-7] (decision 3)\n"
        "  8  22:12:20.010  5.50 ms  claimed    berlin: by e-1 [void: it lost a race]\n"
        "  9  22:13:10.000   50.0 s  evicted    berlin: a GPU died"
    )


def test_why_there_shows_the_ranking_and_who_was_left_out() -> None:
    reply = WhyReply(
        tenant="lab",
        id="train-7",
        state="running",
        summary="running on berlin: best of 2",
        choice=CHOICE,
        decision=3,
        decided_at_s=NOW_S - 61,
        filtered=CHOICE.filtered,
    )
    assert screen(workloads.why(reply, NOW_S)) == (
        "lab/train-7 is running\n"
        "running on berlin: best of 2\n"
        "\n"
        "-> berlin  b-1[0-7] b-2[0-7]  (attempt 1)\n"
        "\n"
        "#  CLUSTER  SCORE  FIT  ROOM  SEEN\n"
        "1  berlin    81.2   63    95    0s\n"
        "2  paris     56.5    9    95    2s\n"
        "\n"
        "LEFT OUT    WHY\n"
        "oslo, rome  no such GPU model\n"
        "kyiv        cordoned\n"
        "Decision 3, 1m01s ago."
    )


def test_a_ranking_by_another_profile_says_which_and_what_was_changed_of_it() -> None:
    chosen = replace(CHOICE, profile="cheapest", weights={"fit": 2.5, "price": 10.0}, filtered={})
    reply = DryRunReply(placed=True, summary="would run on berlin", choice=chosen)
    assert screen(workloads.dry_run(reply, NOW_S)) == (
        "It would run on berlin.\n"
        "\n"
        "-> berlin  b-1[0-7] b-2[0-7]  (attempt 1)\n"
        "\n"
        "Ranked by cheapest (fit 2.5, price 10).\n"
        "#  CLUSTER  SCORE  FIT  ROOM  SEEN\n"
        "1  berlin    81.2   63    95    0s\n"
        "2  paris     56.5    9    95    2s"
    )
    own = replace(chosen, profile="", weights={"fit": 1.0})
    assert "Ranked by balanced (fit 1)." in screen(
        workloads.dry_run(DryRunReply(placed=True, summary="on berlin", choice=own), NOW_S)
    )


def test_why_not_yet_shows_reasons_position_and_what_would_help() -> None:
    reply = WhyReply(
        tenant="lab",
        id="odd",
        state="queued",
        summary="waits: no cluster can take it",
        position=2,
        waiting=5,
        queue_position=1,
        reservation=Reservation(
            tenant="lab",
            id="odd",
            cluster="oslo",
            held=tuple(HeldNode(node=f"n{n}") for n in range(1, 5)),
            expected_at_s=NOW_S,
        ),
        account=QueueAccount(
            queue="vision",
            used_gpu_milli=9500,
            running=4,
            max_running_jobs=6,
            waiting=3,
            guarantee_gpu_milli=4000,
            deserved_gpu_milli=8000,
            capability_gpu_milli=16_000,
            borrowed_gpu_milli=1500,
            priority=5,
            held=True,
        ),
        filtered={"berlin": "no such GPU model", "paris": "no such GPU model"},
        reasons={"no such GPU model": 2},
        hints=("any other GPU model: it would fit now",),
    )
    assert screen(workloads.why(reply, NOW_S)) == (
        "lab/odd is queued\n"
        "waits: no cluster can take it\n"
        "Position 2 of 5 that wait; 1 of 3 in its queue.\n"
        "Reserved for this job on oslo: n1, n2, n3 and 1 more, about 2023-11-14 22:13:20\n"
        "UTC.\n"
        "Queue vision: 9.5 GPUs allocated, 4 of 6 jobs, 4 guaranteed, 8 deserved, at most\n"
        "16, 1.5 borrowed, priority 5, held.\n"
        "\n"
        "LEFT OUT       WHY\n"
        "berlin, paris  no such GPU model\n"
        "\n"
        "What would help:\n"
        "- any other GPU model: it would fit now"
    )


def test_why_all_counts_workloads_by_reason() -> None:
    reply = WhyReply(tenant="lab", summary="3 wait", waiting=3, reasons={"busy": 1, "held": 2})
    assert screen(workloads.why(reply, NOW_S)) == (
        "3 wait\n\nWORKLOADS  REASON\n        2  held\n        1  busy"
    )


def test_a_dry_run_says_first_whether_it_would_be_placed() -> None:
    no = DryRunReply(placed=False, summary="2 clusters, none fits", filtered={"oslo": "busy"})
    assert screen(workloads.dry_run(no, NOW_S)) == (
        "It would wait. 2 clusters, none fits\n\nLEFT OUT  WHY\noslo      busy"
    )
    yes = screen(
        workloads.dry_run(DryRunReply(placed=True, summary="on berlin", choice=CHOICE), NOW_S)
    )
    assert yes.startswith("It would be placed now. on berlin\n\n-> berlin  b-1[0-7] b-2[0-7]")


def test_line_of_pods_with_a_fraction_by_memory_names_the_memory() -> None:
    by_memory = PodSet(gpus=1, gpu_milli=1, gpu_memory_mib=4096)
    assert events.pod_set_line(by_memory) == "4 GiB of 1 GPU, 1 CPU, 1 GiB"
    both = PodSet(gpus=1, gpu_milli=250, gpu_memory_mib=4096)
    assert events.pod_set_line(both) == "1 GPU at 25% with 4 GiB, 1 CPU, 1 GiB"


def test_the_reason_of_a_placement_in_one_line() -> None:
    assert workloads.reason_of(CHOICE) == (
        "score 81 (room 95, fit 63); next paris 56; 3 out (2x no such GPU model)"
    )


def test_clusters_show_unknown_as_unknown_and_notes_below() -> None:
    rows = [
        ClusterRow(
            cluster="berlin", freshness="fresh", seen_s=0.5, nodes=36, gpus=288,
            models={"G2": 288}, free_gpus=72.0, idle_gpu_percent=40.0,
            fragmentation_percent=12.0, scores={"gpuClusterAvailable": 42},
        ),
        ClusterRow(
            cluster="oslo", freshness="withdrawn", seen_s=95.0, nodes=4, gpus=16,
            note="silent for 95 s", cordoned="new racks",
        ),
    ]  # fmt: skip
    assert screen(fleet.clusters(rows)) == (
        "CLUSTER  STATE      SEEN  NODES  GPUS  FREE  USED            IDLE  FRAG  GPU\n"
        "berlin   fresh        0s     36   288    72   75%  ██████░░   40%   12%   42\n"
        "oslo     cordoned  1m35s      4    16     ?     ?               ?     ?    ?\n"
        "\n"
        "2 clusters, 40 nodes, 304 GPUs, 72 free, 75% used (1 cluster unknown)\n"
        "USED: allocated GPUs. IDLE: measured by telemetry. FRAG: free GPUs that suit no\n"
        "typical job. GPU: OCM's score, -100 to 100. ?: unknown.\n"
        "oslo is cordoned: new racks\n"
        "oslo is withdrawn: silent for 95 s"
    )


def test_nodes_show_how_much_of_each_gpu_is_held() -> None:
    rows = [
        NodeRow(
            node="b-1", state="ready", model="G2", gpu_milli_used=(1000, 500, 0, 1),
            utilization_percent=61.4, power_w=812.3, pods=2,
        ),
        NodeRow(node="b-2", state="cordoned", unhealthy=1),
    ]  # fmt: skip
    assert screen(fleet.nodes(rows, ascii_only=True)) == (
        "NODE  STATE     MODEL  GPUS         HELD  UTIL  POWER  PODS\n"
        "b-1   ready     G2     |95.1|    1.501/4   61%  812 W     2\n"
        "b-2   cordoned  -      - +1 bad        -     ?      ?     0"
    )


SUMMARY = WorkloadSummary(
    submitted=600,
    placed_at_least_once=592,
    states={"queued": 8, "running": 302, "succeeded": 286, "failed": 4},
    waiting=8,
    running=302,
    ended=290,
    evictions=1,
    void_events=0,
    impossible_events=0,
    missed_events=0,
    gpus_held=259.32,
    latencies={
        "submit_to_placed": Latency(count=592, p50_s=0.00148, p99_s=3.06, max_s=4.81),
        "submit_to_running": Latency(count=592, p50_s=0.00345, p99_s=3.06, max_s=4.81),
    },
)


def test_the_summary_of_the_demo() -> None:
    report = progress.DemoReport(
        summary=SUMMARY,
        took_s=14.0,
        started_in_s=1.55,
        first_placed_s=1.59,
        gpus=320,
        gpus_used=281.8,
        waiting=WhyReply(tenant="default", summary="8 wait", reasons={"of 8 clusters: 8 busy": 8}),
        restarts=0,
    )
    assert screen(progress.demo(report)) == (
        "Summary\n"
        "up after          1.55 s\n"
        "first job placed  after 1.59 s\n"
        "submitted         600 jobs in 14.0 s\n"
        "placed            592\n"
        "running           302\n"
        "waiting           8\n"
        "ended             290 (286 succeeded, 4 failed)\n"
        "evicted           1 time\n"
        "GPUs              259.3 of 320 held by these jobs (81%); 88% in use with foreign\n"
        "                  load\n"
        "\n"
        "LATENCY            JOBS      P50     P99     MAX\n"
        "submit -> placed    592  1.48 ms  3.06 s  4.81 s\n"
        "submit -> running   592  3.45 ms  3.06 s  4.81 s\n"
        "\n"
        "Why they wait: 8 wait\n"
        "WORKLOADS  REASON\n"
        "        8  of 8 clusters: 8 busy"
    )


def test_progress_without_a_terminal_is_one_line() -> None:
    assert progress.progress_line(7.0, SUMMARY, 320) == (
        "   7.0 s  8 queued, 302 running, 286 succeeded, 4 failed, 259 of 320 GPUs held by jobs; "
        "submit to running p50 3.45 ms, p99 3.06 s"
    )


def test_the_live_view_fits_its_width() -> None:
    placement = progress.PlacementLine(
        at_s=0, id="job-1", gpus=0.5, cluster="berlin", waited_s=0.002, reason="score 81 " * 20
    )
    rows = [ClusterRow(cluster="berlin", freshness="fresh", seen_s=1, gpus=288, free_gpus=144.0)]
    shown = screen(
        progress.live(rows, SUMMARY, [placement], head="Demo", held={"berlin": 12.0}, width=80)
    )
    assert shown.splitlines()[:4] == [
        "Demo",
        "",
        "CLUSTER  GPUS  USED                                OURS  STATE",
        "berlin    288   50%  ██████████████░░░░░░░░░░░░░░    12  fresh",
    ]
    assert "job-1         0.5 GPU  -> berlin after 2.00 ms: score 81" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_an_account_that_does_not_balance_says_so() -> None:
    account = Account(
        offered=3, refused=1, submitted=2, succeeded=1, failed=0, cancelled=0, running=0, waiting=0,
        missing=1, missing_ids=("lost-1",),
    )  # fmt: skip
    shown = screen(progress.balance(account, {"queue: 'x' refused": 1}))
    assert shown.endswith("The account does not balance. Missing: lost-1\n1 x queue: 'x' refused")


def test_what_could_steer_a_terminal_is_shown_instead() -> None:
    assert visible("gone\x1b[2J\x07\u202e") == "gone\\x1b[2J\\x07\\u202e"
    evil = ListReply(workloads=(view(queue="a\x1b]0;b\x07"),))
    assert "\x1b" not in screen(workloads.jobs(evil, NOW_S))


def test_what_if_shows_the_summary_then_whom_it_is_about() -> None:
    reply = WhatifReply(
        change="cordon oslo",
        summary="cordon oslo: 22 would go elsewhere if placed anew",
        elsewhere=(
            Moved(tenant="lab", id="train-7", queue="vision", gpus=16, was="oslo", would="rome"),
            Moved(tenant="lab", id="t-8", queue="default", gpus=0.5, was="oslo"),
        ),
        stranded=(Moved(tenant="lab", id="odd", queue="default", gpus=8),),
        counts={"elsewhere": 22, "stranded": 1},
        hidden=20,
        capped=("256 of 300 placements were looked at",),
    )
    assert screen(whatif.whatif(reply, NOW_S)) == (
        "cordon oslo: 22 would go elsewhere if placed anew\n"
        "\n"
        "Would go elsewhere if placed anew; what runs stays:\n"
        "WORKLOAD     QUEUE    GPUS  WAS   WOULD\n"
        "lab/train-7  vision     16  oslo  rome\n"
        "lab/t-8      default   0.5  oslo  nowhere\n"
        "and 20 more\n"
        "\n"
        "Would have no cluster left:\n"
        "WORKLOAD  QUEUE    GPUS  WAS    WOULD\n"
        "lab/odd   default     8  waits  waits\n"
        "\n"
        "20 of these are other tenants'.\n"
        "Not all was looked at: 256 of 300 placements were looked at."
    )


def test_what_if_the_fleet_were_rebalanced_shows_for_whom_then_who_from_where_to_where() -> None:
    reply = WhatifReply(
        change="rebalance",
        summary="rebalance: 1 would move",
        ended=(
            Ended(
                tenant="lab",
                id="t-8",
                queue="default",
                cluster="oslo",
                gpus=2,
                lost_gpu_s=160,
                why="so",
                to="rome",
                for_id="lab/wide",
                nodes=("n1", "n2", "n3"),
                to_nodes=("n9",),
            ),
        ),
        lost_gpu_s=160,
        rebalances=(
            Rebalanced(
                tenant="lab",
                id="wide",
                queue="vision",
                gpus=4,
                cluster="oslo",
                nodes=("n1",),
                moves=1,
                waited_s=620,
                saves_s=580,
                gain_gpu_s=2320,
                cost_gpu_s=160,
            ),
            Rebalanced(tenant="lab", id="odd", queue="vision", waited_s=30, why_not="too early"),
        ),
    )
    shown = [" ".join(line.split()) for line in screen(whatif.whatif(reply, NOW_S)).splitlines()]
    assert shown == [
        "rebalance: 1 would move",
        "",
        "WAITS GPUS SINCE MOVES GAINS LOSES BEGINS IN, OR WHY NOT",
        "lab/wide 4 10m 1 2,320 GPU s 160 GPU s oslo (n1)",
        "lab/odd 0 30.0 s - - - too early",
        "",
        "WORKLOAD QUEUE GPUS IN TO LOSES WHY",
        "lab/t-8 default 2 oslo (n1, n2 and 1 more) rome (n9) 160 GPU s so",
    ]


def test_what_if_a_job_were_submitted_shows_its_why() -> None:
    job = WhyReply(tenant="lab", id="odd", state="queued", summary="waits: of 2 clusters: 2 busy")
    reply = WhatifReply(change="submit odd", summary="submit odd: it waits", job=job)
    assert screen(whatif.whatif(reply, NOW_S)) == (
        "submit odd: it waits\n\nlab/odd is queued\nwaits: of 2 clusters: 2 busy"
    )


def test_an_event_is_one_line_and_on_a_narrow_terminal_says_the_rest_below() -> None:
    pods = tuple(
        PodBinding(pod=f"main-{n}", node=f"node-{n}", gpus=tuple(range(8))) for n in range(6)
    )
    placed = Placed(
        tenant="default",
        id="train-7",
        after=1,
        at_s=NOW_S,
        by="resolver",
        cluster="berlin",
        attempt=1,
        decision=12,
        request=JobRequest(id="train-7"),
        pods=pods,
    )
    head = f"{amounts.clock(NOW_S)}  train-7                  placed"
    what = "berlin: node-0[0-7] node-1[0-7] node-2[0-7] node-3[0-7] and 2 more (decision 12)"
    assert events.event_line(placed, NOW_S).plain == f"{head}     {what}"
    assert events.event_line(placed, NOW_S, width=200).plain == f"{head}     {what}"
    assert events.event_line(placed, NOW_S, width=80).plain == (
        f"{head}\n"
        "              berlin: node-0[0-7] node-1[0-7] node-2[0-7] node-3[0-7] and 2 more\n"
        "              (decision 12)"
    )
    short = replace(placed, pods=pods[:1])
    assert events.event_line(short, NOW_S, width=100).plain == (
        f"{head}     berlin: node-0[0-7] (decision 12)"
    )


def test_places_of_parts_say_how_hard_their_limit_is() -> None:
    pods = [
        PodBinding(pod="a-0", node="n1", gpus=(0,), isolation="memory"),
        PodBinding(pod="a-1", node="n2", gpus=(1,), isolation="memory"),
        PodBinding(pod="b-0", node="n3"),
    ]
    assert events.places(pods) == "n1[0] n2[1] n3 (isolation memory)"
    assert events.places(pods[2:]) == "n3"
