"""Stories of the controller's core: from a Placement to a configuration, and who passes when."""

from typing import Any

import msgspec
import pytest

from berthmaster.hub.admission.core.gate import NewState, new_state
from berthmaster.hub.admission.core.instructions import (
    DeleteConfig,
    WriteConditions,
    WriteConfig,
    WriteState,
)
from berthmaster.hub.admission.core.objects import OCM_GROUP
from berthmaster.hub.admission.core.review import Review, review
from berthmaster.lib.kueue.multikueue import AdmissionCheck, Parameters
from berthmaster.lib.kueue.workloads import Workload
from tests.unit.hub.admission.hub_objects import (
    CHECK,
    NAMESPACE,
    NO_PARAMETERS,
    check,
    cluster,
    condition,
    foreign,
    multikueue_check,
    page,
    placement,
)
from tests.unit.hub.admission.world import SETTLE_S, World

WHERE = f"Placement {NAMESPACE}/t4"
AT = ("ml", "train")


def test_a_placement_becomes_a_configuration_and_whoever_waits_passes() -> None:
    world = World("b", "a", "x", selected=["b", "a"])
    world.submit()
    world.settle()
    assert world.listed == "b a"
    assert world.active() == ("Active", f"{WHERE}: b, a")
    assert world.state() == ("Ready", f"{WHERE} selects b, a")
    assert world.told == [("ClusterAdded", "b, a"), ("Active", f"{WHERE}: b, a")]
    assert [type(write) for write in world.writes] == [WriteConfig, WriteConditions, WriteState]
    world.wait(100.0)
    assert len(world.writes) == 3, "what is right is not written again"


def test_a_cluster_that_is_replaced_leaves_when_its_last_job_has_ended() -> None:
    world = World("a", "b", "c", selected=["a", "b"])
    world.submit()
    world.settle()
    world.admit("train", "a")

    # c replaces a: c comes at once, a stays for what runs there and takes nothing new.
    world.select("b", "c")
    world.settle()
    assert world.listed == "(a) b c"
    assert world.active()[1] == f"{WHERE}: b, c; draining, nothing new goes there: a"
    world.submit("next")
    world.settle()
    assert world.state("next") == ("Ready", f"{WHERE} selects b, c")
    world.wait(600.0)
    assert world.listed == "(a) b c"

    # It ends; within one breath, in which nobody passes, a is out.
    world.finish("train")
    world.settle()
    world.submit("held")
    world.wait(SETTLE_S - 0.1)
    assert world.state("held") == ("Pending", "")
    assert world.listed == "(a) b c"
    world.wait(0.2)
    assert world.listed == "b c"
    assert world.state("held") == ("Ready", f"{WHERE} selects b, c")
    assert [one for one in world.told if one[0] != "Active"] == [
        ("ClusterAdded", "a, b"),
        ("ClusterAdded", "c"),
        ("ClusterDraining", "a"),
        ("ClusterRemoved", "a"),
    ]


def test_a_nomination_keeps_a_cluster_as_a_running_job_does() -> None:
    world = World("a", "b")
    world.submit()
    world.settle()
    world.nominate("train", "a", "b")
    world.select("b")
    world.wait(60.0)
    assert world.listed == "(a) b"
    world.admit("train", "b")
    world.wait(SETTLE_S + 0.1)
    assert world.listed == "b"


def test_a_copy_that_a_worker_still_has_keeps_its_cluster() -> None:
    """The other copies go only after one was admitted, and an orphan would run."""
    world = World("a", "b")
    world.submit()
    world.settle()
    world.admit("train", "b")
    world.core.on_copy("a", AT, there=True)
    world.core.on_copy("a", ("ml", "long-gone"), there=True)  # Kueue collects that one
    world.select("b")
    world.wait(60.0)
    assert world.listed == "(a) b"
    world.core.on_copy("a", AT, there=False)
    world.wait(SETTLE_S + 0.1)
    assert world.listed == "b"


def test_copies_are_reported_by_the_name_of_the_fleet() -> None:
    world = World("b")
    world.put(cluster("hub-a", annotations={"berthmaster.io/cluster": "a"}))
    world.select("a", "b")
    world.submit()
    world.settle()
    assert world.listed == "hub-a b"
    world.admit("train", "b")
    world.core.on_copy("a", AT, there=True)
    world.select("b")
    world.wait(60.0)
    assert world.listed == "(hub-a) b"


def test_what_shows_up_during_the_breath_keeps_the_cluster() -> None:
    """Kueue's own dispatchers do not know of the mark."""
    world = World("a", "b")
    world.submit()
    world.settle()
    world.select("b")
    world.settle()
    assert world.core.standings[CHECK].held
    world.wait(SETTLE_S - 0.5)
    world.nominate("train", "a", "b")
    world.wait(60.0)
    assert world.listed == "(a) b"
    world.finish("train")
    world.wait(5 * SETTLE_S)
    assert world.listed == "b"


def test_who_comes_back_is_no_longer_draining_and_has_its_old_place() -> None:
    world = World("a", "b", "c", selected=["a", "b"])
    world.submit()
    world.settle()
    world.admit("train", "a")
    world.select("c", "b")
    world.settle()
    assert world.listed == "(a) b c"
    world.select("c", "b", "a")
    world.wait(60.0)
    assert world.listed == "a b c"


def test_order_is_kept_whoever_made_it() -> None:
    world = World("a", "b", "c", selected=["a", "b"])
    world.settle()
    config = world.config
    assert config is not None
    other = foreign("b", "a").spec
    world.put(type(config)(metadata=config.metadata, spec=other))
    world.select("a", "b", "c")
    world.settle()
    assert world.listed == "b a c"


def test_a_placement_that_selects_nobody_keeps_all_and_lets_nobody_pass() -> None:
    world = World("a", "b")
    world.settle()
    told = condition("PlacementSatisfied", False, "NoManagedClusterMatched", "none")
    world.put(placement("t4", told))
    world.select()
    world.submit()
    world.wait(60.0)
    assert world.listed == "(a) (b)"
    reason, message = world.active()
    why = f"{WHERE} selects no cluster (NoManagedClusterMatched: none)"
    kept = f"MultiKueueConfig {CHECK} keeps a, b, draining"
    assert (reason, message) == ("NoClustersAvailable", f"{why}; {kept}")
    assert world.state() == ("Pending", f"{reason}: {message}")
    assert ("NoClustersAvailable", message) in world.told
    world.select("b")
    world.wait(SETTLE_S + 0.1)
    assert world.listed == "b"
    assert world.state()[0] == "Ready"


@pytest.mark.parametrize("trouble", ["misconfigured", "gone", "no decisions", "unreadable"])
def test_while_it_is_not_known_who_is_selected_nothing_changes(trouble: str) -> None:
    world = World("a", "b", "c", selected=["a", "b"])
    world.submit("early")
    world.settle()
    world.admit("early", "a")
    world.select("b")
    world.settle()
    expected = {
        "misconfigured": "PlacementError",
        "gone": "PlacementNotFound",
        "no decisions": "PlacementDecisionError",
        "unreadable": "PlacementDecisionError",
    }[trouble]
    match trouble:
        case "misconfigured":
            world.put(placement("t4", condition("PlacementMisconfigured", True, "X", "bad CEL")))
            world.select()
        case "gone":
            world.drop("Placement", "t4", NAMESPACE)
        case "no decisions":
            world.drop("PlacementDecision", "t4-decision-1", NAMESPACE)
        case _:
            world.core.on_unreadable({}, {"t4-decision-1": "no list"})
    world.submit()
    world.finish("early")
    world.wait(60.0)
    assert world.listed == "(a) b"
    assert world.active()[0] == expected
    assert world.active()[1].endswith(f"MultiKueueConfig {CHECK} stays as it is")
    assert world.state()[0] == "Pending"
    assert world.state()[1].startswith(f"{expected}: ")
    if trouble == "unreadable":
        world.core.on_unreadable({}, {})
    world.put(placement())
    world.select("c")
    world.wait(3 * SETTLE_S)
    assert world.listed == "c"
    assert world.state()[0] == "Ready"


def test_while_a_misconfigured_edit_is_being_written_nobody_drains() -> None:
    world = World("a", "b")
    world.put(placement("t4", selected=2))
    world.submit("early")
    world.settle()
    assert world.listed == "a b"
    # As Open Cluster Management does it: the page is emptied, and the status says why later.
    world.select()
    world.submit("late")
    world.wait(0.08)
    assert world.listed == "a b"
    assert world.state("late")[0] == "Pending"
    world.put(placement("t4", condition("PlacementMisconfigured", True, "X", "bad"), selected=0))
    world.wait(60.0)
    assert world.listed == "a b"
    assert world.active()[0] == "PlacementError"
    # Mended: the page comes first as well.
    world.select("a", "b")
    world.put(placement("t4", condition("PlacementMisconfigured", False), selected=2))
    world.settle()
    assert (world.listed, world.state("late")[0]) == ("a b", "Ready")
    # One that is really taken out drains as soon as the status says so.
    world.admit("late", "b")
    world.select("a")
    world.wait(0.5)
    assert world.listed == "a b"
    world.put(placement("t4", selected=1))
    world.settle()
    assert world.listed == "a (b)"


def test_a_scheduler_that_died_before_its_status_is_not_waited_for_for_ever() -> None:
    world = World("a", "b")
    world.put(placement("t4", selected=2))
    world.settle()
    world.submit()
    world.settle()
    world.admit("train", "b")
    world.select("a")
    world.wait(1.9)
    assert world.listed == "a b"
    world.wait(0.2)
    assert world.listed == "a (b)"


def test_a_placement_that_our_evaluator_goes_on_deciding_is_followed_while_misconfigured() -> None:
    world = World("a", "b")
    world.settle()
    world.put(placement("t4", condition("PlacementMisconfigured", True, "X", "bad CEL")))
    world.put(page("b", request='{"generation":1}'))
    world.submit()
    world.wait(60.0)
    assert (world.listed, world.active()[0], world.state()[0]) == ("b", "Active", "Ready")
    assert world.active()[1].startswith(f"{WHERE} (misconfigured: bad CEL): b")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (NO_PARAMETERS, "spec.parameters is missing"),
        (
            Parameters(api_group="kueue.x-k8s.io", kind="MultiKueueConfig", name="t4"),
            "spec.parameters names a kueue.x-k8s.io/MultiKueueConfig",
        ),
    ],
)
def test_check_with_wrong_parameters_is_explained(parameters: Parameters, words: str) -> None:
    world = World("a")
    world.put(check(parameters=parameters))
    world.submit()
    world.settle()
    assert world.listed == "none"
    assert world.active()[0] == "PlacementError"
    assert world.active()[1].startswith(words)
    assert world.state()[0] == "Pending"
    world.put(check())
    world.settle()
    assert world.listed == "a"
    assert world.active()[0] == "Active"
    assert world.state()[0] == "Ready"


def test_somebody_else_s_configuration_of_that_name_is_left_alone_until_it_is_handed_over() -> None:
    world = World("a", "b", "c", selected=["a", "b"])
    world.put(foreign("c", "b"))
    world.submit()
    world.wait(60.0)
    assert world.listed == "c b"
    assert world.active()[0] == "MultiKueueConfigError"
    assert "is not ours" in world.active()[1]
    assert world.state()[0] == "Pending"
    assert not [write for write in world.writes if isinstance(write, WriteConfig)]
    config = world.config
    assert config is not None
    config.metadata.labels["app.kubernetes.io/managed-by"] = "berthmaster-admission"
    config.metadata.annotations["berthmaster.io/admission-check"] = CHECK
    world.put(config)
    world.admit("train", "c")
    world.settle()
    assert world.listed == "(c) b a"


def test_two_checks_on_one_placement_have_a_configuration_each() -> None:
    world = World("a", "b")
    world.put(check("other"))
    world.put(multikueue_check("other", "send-other"))
    world.submit()
    world.settle()
    world.admit("train", "a")
    first = {w.name: w.clusters for w in world.writes if isinstance(w, WriteConfig)}
    assert first == {CHECK: ("a", "b"), "other": ("a", "b")}
    world.select("b")
    world.wait(3 * SETTLE_S)
    # The job is one of the first check's: only there a must wait.
    other = world.core.index.configs["other"]
    assert (world.listed, other.clusters) == ("(a) b", ("b",))


def test_clusters_that_kueue_does_not_know_are_made_from_their_secrets() -> None:
    world = World("a", selected=["a", "new", "x"])
    world.settle()
    assert world.listed == "a"
    words = "no MultiKueueCluster and no kubeconfig Secret: new, x"
    assert world.active() == ("Active", f"{WHERE}: a; {words}")
    world.secrets.add("new")
    world.wait(10.1)
    assert world.listed == "a new"
    assert world.active()[1].endswith("no MultiKueueCluster and no kubeconfig Secret: x")
    world.submit()
    world.settle()
    assert world.state() == ("Ready", f"{WHERE} selects a"), "new is not reached yet"


def test_without_any_cluster_that_kueue_reaches_everybody_waits_and_hears_why() -> None:
    world = World(selected=["x"])
    world.submit()
    world.settle()
    assert world.listed == "none"
    why = "there is no MultiKueueCluster, nor a kubeconfig Secret to make one with"
    assert world.active() == ("NoClustersAvailable", f"{WHERE} selects x: {why}")
    world.put(cluster("x", active=False))
    world.settle()
    assert world.listed == "x"
    assert world.active()[0] == "Active"
    words = "NoClustersAvailable: Kueue reaches none of x (BadKubeConfig: no Secret)"
    assert world.state() == ("Pending", words)
    world.put(cluster("x"))
    world.settle()
    assert world.state() == ("Ready", f"{WHERE} selects x")


def test_a_hundred_and_one_clusters_give_twenty_and_a_condition_that_names_the_rest() -> None:
    names = [f"c{number:03}" for number in range(101)]
    world = World(*names)
    world.settle()
    assert world.listed == " ".join(names[:20])
    reason, message = world.active("Truncated")
    assert reason == "TooManyClusters"
    assert message.startswith("MultiKueue takes 20 clusters; 81 more are selected and left out: c0")
    assert message.endswith("c039 and 61 more")
    assert ("Truncated", message) in world.told
    world.drop("PlacementDecision", "t4-decision-2", NAMESPACE)
    world.select(*names[:20])
    world.settle()
    assert world.active("Truncated") == ("", "")


def test_twenty_that_are_all_replaced_make_room_one_by_one() -> None:
    names = [f"c{number:02}" for number in range(40)]
    world = World(*names, selected=names[:20])
    world.submit()
    world.settle()
    world.admit("train", names[3])
    world.select(*names[20:])
    world.settle()
    assert world.active()[0] == "NoClustersAvailable"
    assert "there is no room while c00, c01" in world.active()[1]
    world.wait(2 * SETTLE_S)
    assert world.listed == " ".join([f"({names[3]})", *names[20:39]])
    assert world.active()[0] == "Active"
    assert world.active("Truncated")[1].endswith("left out: c39")
    world.finish("train")
    world.wait(2 * SETTLE_S)
    assert world.listed == " ".join(names[20:])


def test_a_name_that_no_check_of_multikueue_could_name_is_refused() -> None:
    world = World("a")
    for name in ("x" * 63, "x" * 64, "a.b"):
        world.put(check(name))
    world.settle()
    assert world.active(name="x" * 63)[0] == "Active"
    for name in ("x" * 64, "a.b"):
        reason, message = world.active(name=name)
        assert reason == "MultiKueueConfigError"
        assert "right are up to 63 of a-z, 0-9 and -" in message
    assert {w.name for w in world.writes if isinstance(w, WriteConfig)} == {CHECK, "x" * 63}


def test_a_configuration_that_cannot_be_written_is_told_and_tried_again() -> None:
    world = World("a", "b", selected=["a"])
    world.refuse = "quota of objects"
    world.submit()
    world.settle()
    words = f"MultiKueueConfig {CHECK} cannot be written: quota of objects"
    assert world.active() == ("MultiKueueConfigError", words)
    assert world.state()[0] == "Pending"
    world.refuse = ""
    world.wait(10.1)
    assert world.active()[0] == "Active"
    # What works goes on while only a change of it fails.
    world.refuse = "not allowed"
    world.select("a", "b")
    world.submit("next")
    world.settle()
    assert world.active()[0] == "Active"
    assert world.active()[1].endswith(f"MultiKueueConfig {CHECK} cannot be written: not allowed")
    assert world.state("next")[0] == "Ready"


def test_the_configuration_of_a_deleted_check_goes_when_nobody_names_it() -> None:
    world = World("a")
    world.settle()
    world.drop("AdmissionCheck", CHECK)
    world.select()
    world.wait(60.0)
    assert world.listed == "a"
    note = "its check is gone and it stays: AdmissionCheck send names it"
    assert world.told.count(("MultiKueueConfigDeleteError", note)) == 1
    world.whole = False
    world.drop("AdmissionCheck", "send")
    world.wait(60.0)
    assert world.listed == "a", "not while the bus is away"
    world.whole = True
    world.put(foreign("a", name="other"))
    world.wait(1.0)
    assert world.listed == "none"
    assert isinstance(world.writes[-1], DeleteConfig)


def test_without_the_bus_all_pass_and_clusters_come_but_none_leaves() -> None:
    world = World("a", "b", selected=["a"])
    world.whole = False
    world.submit()
    world.settle()
    assert (world.listed, world.state()[0]) == ("a", "Ready")
    world.select("b")
    world.wait(60.0)
    assert world.listed == "(a) b"
    world.whole = True
    world.wait(SETTLE_S + 2.0)
    assert world.listed == "b"


def test_a_breath_ends_when_the_bus_goes() -> None:
    world = World("a", "b")
    world.settle()
    world.select("b")
    world.settle()
    world.submit()
    world.settle()
    assert world.state()[0] == "Pending"
    world.whole = False
    world.wait(SETTLE_S + 0.1)
    world.put(placement())
    world.settle()
    assert (world.listed, world.state()[0]) == ("(a) b", "Ready")


def test_a_new_life_goes_on_where_the_last_one_was_killed() -> None:
    world = World("a", "b", "c", selected=["a", "b"])
    world.submit()
    world.settle()
    world.admit("train", "a")
    world.select("b", "c")
    world.settle()
    world.finish("train")
    world.wait(SETTLE_S / 2)
    world.restart()
    world.submit("next")
    written = len(world.writes)
    world.wait(SETTLE_S + 0.1)
    assert world.listed == "b c"
    assert world.state("next")[0] == "Ready"
    kinds = [type(write) for write in world.writes[written:]]
    assert kinds == [WriteConfig, WriteConditions, WriteState], "nothing is said twice"


def test_what_somebody_wrote_first_is_looked_at_again() -> None:
    world = World("a", "b", selected=["a"])
    world.settle()
    world.select("a", "b")
    instructions = world.look()
    config = world.config
    assert config is not None
    world.lagging = True
    world.put(config)  # somebody's write, of which the mirror has not heard
    world.perform(instructions)
    assert world.listed == "a"
    world.lagging = False
    world.deliver()
    world.wait(1.0)
    assert world.listed == "a b"


def test_an_eviction_means_passing_again_with_what_is_selected_then() -> None:
    world = World("a", "b", selected=["a"])
    world.submit()
    world.settle()
    world.admit("train", "a")
    world.select("b")
    world.settle()
    world.evict("train")
    world.settle()
    assert world.state() == ("Pending", ""), "a is empty now: one breath"
    world.wait(SETTLE_S + 0.1)
    assert world.listed == "b"
    assert world.state() == ("Ready", f"{WHERE} selects b")


def test_a_check_that_names_a_config_map_is_the_dispatcher_s() -> None:
    world = World("a")
    world.put(check("labels", Parameters(api_group="core", kind="ConfigMap", name="where")))
    world.put(check("ocm", controller="open-cluster-management.io/placement"))
    world.settle()
    assert {w.check for w in world.writes if isinstance(w, WriteConditions)} == {CHECK}
    assert set(world.core.reviews) == {CHECK}


def test_decisions_of_another_placement_do_not_count() -> None:
    world = World("a", "b", selected=["a"])
    world.put(placement("other"))
    world.put(page("b", of="other"))
    named = Parameters(api_group=OCM_GROUP, kind="Placement", name="other")
    world.put(check("second", named))
    world.settle()
    assert world.listed == "a"
    assert world.core.index.configs["second"].clusters == ("b",)


def test_a_thousand_who_wait_are_let_through_in_bounded_bunches() -> None:
    world = World("a")
    world.settle()
    for number in range(1000):
        world.submit(f"job-{number:04}")
    first = [one for one in world.look() if isinstance(one, WriteState)]
    assert len(first) == 200
    world.perform(first)
    world.settle()
    assert all(world.state(f"job-{n:04}")[0] == "Ready" for n in range(1000))
    assert len([w for w in world.writes if isinstance(w, WriteState)]) == 1000


def test_odd_check_is_set_aside_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(check: AdmissionCheck, *args: Any, **rest: Any) -> Review:
        if check.metadata.name == "odd" and "cured" not in check.metadata.labels:
            raise RuntimeError("what nobody thought of")
        return review(check, *args, **rest)

    monkeypatch.setattr("berthmaster.hub.admission.core.admission.review", odd)
    world = World("a")
    named = Parameters(api_group=OCM_GROUP, kind="Placement", name="t4")
    world.put(check("odd", named))
    world.submit()
    world.settle()
    assert world.state()[0] == "Ready", "the other check is as it should be"
    assert "odd" not in world.core.standings, "nobody passes there"
    (oddity,) = world.core.aside.take_unreported()
    assert (oddity.event.metadata.name, oddity.event.reason) == ("odd", "CannotBeHandled")
    assert "RuntimeError in test_core.py" in oddity.event.note
    assert "nobody thought" not in oddity.event.note, "an error's text may hold a secret"

    # It is told once, however often it is come by, and well when it is put right.
    world.select("a", "a")
    world.settle()
    assert world.core.aside.take_unreported() == []
    cured = check("odd", named)
    meta = msgspec.structs.replace(cured.metadata, labels={"cured": "yes"})
    world.put(msgspec.structs.replace(cured, metadata=meta))
    world.settle()
    assert len(world.core.aside) == 0
    assert world.core.index.configs["odd"].clusters == ("a",)


def test_odd_workload_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(workload: Workload, *rest: Any) -> NewState | None:
        if workload.metadata.name == "odd":
            raise RuntimeError
        return new_state(workload, *rest)

    monkeypatch.setattr("berthmaster.hub.admission.core.admission.new_state", odd)
    world = World("a")
    for name in ("before", "odd", "then"):
        world.submit(name)
    world.settle()
    assert [world.state(name)[0] for name in ("before", "odd", "then")] == [
        "Ready",
        "Pending",
        "Ready",
    ]
    assert [one.metadata.name for one in world.core.aside.take_unreported()] == ["odd"]
