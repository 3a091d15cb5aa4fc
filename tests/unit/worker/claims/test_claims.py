"""A few claims of the cluster, in the cluster."""

from math import inf

from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent
from berthmaster.lib.ocm.core.ownership import MANAGED_BY, OURS
from berthmaster.lib.ocm.core.pace import Rules
from berthmaster.worker.claims.core.claims import NAMES, Claims
from berthmaster.worker.claims.core.instructions import CreateClaim, Instruction, Write, WriteClaim
from berthmaster.worker.claims.core.objects import ClusterClaim, ClusterClaimSpec
from tests.unit.hub.ocm.builders import T0_S, metadata, score

FREE = "gpu-free.berthmaster.io"


def claim(name: str, value: str, *, version: int = 1, ours: bool = True) -> ClusterClaim:
    return ClusterClaim(
        metadata=metadata(name, version=version, labels={MANAGED_BY: OURS} if ours else {}),
        spec=ClusterClaimSpec(value=value),
    )


class Story:
    def __init__(self) -> None:
        rules = Rules(settle_s=60.0, refill_s=60.0, burst=6.0)
        self.core = Claims("east", rules, 30.0)
        self.now_s = T0_S
        self.version = 0
        self.core.listen(self.now_s, blind=False)

    def tell(self, cluster: str = "east", *, free: float = 12.0) -> None:
        self.core.on_score(score(cluster, free=free), self.now_s)

    def stored(self, write: Instruction) -> None:
        assert isinstance(write, CreateClaim | WriteClaim)
        self.version += 1
        made = claim(write.key[2], write.value, version=self.version)
        self.core.on_answer(write, Answer(found=made), self.now_s)

    def settle(self) -> dict[str, str]:
        told: dict[str, str] = {}
        for each in self.core.act(self.now_s):
            assert not isinstance(each, KubeEvent)
            self.stored(each)
            told[each.key[2]] = each.value
        return told


def begun() -> Story:
    story = Story()
    story.core.on_listed("clusterclaims")
    story.tell()
    assert set(story.settle()) == set(NAMES)
    return story


def test_claims_are_made_once_the_cluster_has_them_and_a_score_came() -> None:
    story = Story()
    assert story.settle() == {}
    story.tell("west")
    story.core.on_listed("clusterclaims")
    assert story.settle() == {}
    story.tell()
    assert story.settle() == {
        FREE: "12",
        "gpu-largest-gang.berthmaster.io": "12",
        "gpu-largest-gang-model.berthmaster.io": "Tesla-T4",
        "score-freshness.berthmaster.io": "fresh",
    }
    assert story.settle() == {}


def test_a_change_has_time_but_not_one_to_nothing() -> None:
    story = begun()
    for _ in range(12):
        story.tell(free=7)
        assert story.settle() == {}
        story.now_s += 5
    story.tell(free=7)
    assert story.settle() == {FREE: "7", "gpu-largest-gang.berthmaster.io": "7"}
    story.now_s += 1
    story.tell(free=0)
    assert story.settle() == {FREE: "0", "gpu-largest-gang.berthmaster.io": "0"}


def test_while_nobody_tells_the_claims_stay_and_one_that_is_lost_is_made_as_it_was() -> None:
    story = begun()
    for after_s in (29, 1, 3600):
        story.now_s += after_s
        assert story.settle() == {}
    kept = story.core.targets.all["claim", "", FREE]
    assert kept.trouble == "it stays as it was: nobody has told its score for 30 s"
    story.core.on_object(claim(FREE, "12"), gone=True)
    assert story.settle() == {FREE: "12"}
    # Gone from the bus altogether: still nobody knows.
    story.core.on_gone("east")
    story.now_s += 31
    assert story.settle() == {}
    story.tell(free=0)
    assert story.settle()[FREE] == "0"
    assert kept.trouble == ""


def test_a_cluster_that_is_silent_itself_claims_nothing() -> None:
    story = begun()
    for _ in range(7):
        story.now_s += 5
        story.tell()
    story.core.on_score(score(freshness="withdrawn"), story.now_s)
    told = story.settle()
    assert (told[FREE], told["score-freshness.berthmaster.io"]) == ("0", "withdrawn")


def test_a_cluster_of_which_nothing_was_ever_told_claims_that() -> None:
    story = Story()
    story.core.on_listed("clusterclaims")
    story.now_s += 31
    assert story.settle()["score-freshness.berthmaster.io"] == "noreport"


def test_a_claim_of_our_name_that_somebody_else_made_stays() -> None:
    story = Story()
    story.core.on_listed("clusterclaims")
    story.core.on_object(claim(FREE, "theirs", ours=False), gone=False)
    story.tell()
    asked = story.core.act(story.now_s)
    [tell] = [each for each in asked if isinstance(each, KubeEvent)]
    assert (tell.resource.kind, tell.reason, tell.metadata.name) == (
        "ClusterClaim",
        "NotOurs",
        FREE,
    )
    writes: list[Write] = [each for each in asked if not isinstance(each, KubeEvent)]
    assert FREE not in {each.key[2] for each in writes}
    for each in writes:
        story.stored(each)
    story.tell(free=0)
    assert FREE not in story.settle()


def test_a_claim_that_is_deleted_is_made_anew_and_one_of_others_is_nothing_to_us() -> None:
    story = begun()
    story.core.on_object(claim(FREE, "12"), gone=True)
    assert story.settle() == {FREE: "12"}
    story.core.on_object(claim("id.k8s.io", "x", ours=False), gone=False)
    assert story.settle() == {}


def test_a_cluster_that_nobody_manages_stays_quiet() -> None:
    story = begun()
    story.core.on_absent("clusterclaims")
    story.tell(free=0)
    assert story.settle() == {}
    story.now_s += 31
    assert story.settle() == {}
    assert story.core.wake_at_s() == inf
    story.tell(free=3)
    story.core.on_listed("clusterclaims")
    assert story.settle()[FREE] == "3"
