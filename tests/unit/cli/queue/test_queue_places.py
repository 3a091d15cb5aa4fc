import pytest

from berthmaster.cli.queue.settings import changed, queue_place
from berthmaster.cli.values import WrongInput
from berthmaster.lib.messages.control import QueuePlace, QueueSetting


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("ml", ("*", QueuePlace(namespace="ml"))),
        ("hub=team/main", ("hub", QueuePlace(namespace="team", local_queue="main"))),
        (
            "arn:aws/x=ml/main@runner",
            ("arn:aws/x", QueuePlace(namespace="ml", local_queue="main", service_account="runner")),
        ),
    ],
)
def test_a_place_is_a_namespace_and_may_say_for_which_cluster(
    text: str, right: tuple[str, QueuePlace]
) -> None:
    assert queue_place(text) == right


@pytest.mark.parametrize("text", ["", "=ml", "a=", "ml/", "ml@", "ml/a/b", "a=b=c"])
def test_a_place_that_is_none_is_told_with_what_is_right(text: str) -> None:
    with pytest.raises(WrongInput, match=r"right is \[CLUSTER=\]NAMESPACE"):
        queue_place(text)


def test_places_that_are_given_replace_those_that_were_and_others_stay() -> None:
    before = QueueSetting(queue="q", via="hub", places={"*": QueuePlace(namespace="old")})
    flags = {"place": ("hub=team/main", "ml")}
    after = QueueSetting(
        queue="q",
        via="hub",
        places={
            "hub": QueuePlace(namespace="team", local_queue="main"),
            "*": QueuePlace(namespace="ml"),
        },
    )
    assert changed(before, False, flags) == after
    assert changed(after, False, {"via": "direct", "place": ()}).places == after.places
    assert changed(after, False, {"via": "direct"}).via == "direct"


def test_lists_of_flags_are_trimmed_and_an_empty_member_is_refused_with_its_index() -> None:
    queue = QueueSetting(queue="q")
    allows = changed(queue, False, {"allow_tolerations": " gpu , spot", "allow_images": ""}).allows
    assert (allows.tolerations, allows.images) == (("gpu", "spot"), ())
    for text, at in (("gpu,", 1), (",gpu", 0), ("a, ,b", 1), (",", 0)):
        right = (
            rf"--allow-tolerations '{text}': member \[{at}\] is empty; right is A,B, '' or 'any'"
        )
        with pytest.raises(WrongInput, match=right):
            changed(queue, False, {"allow_tolerations": text})


def test_amounts_of_a_queue_are_numbers_of_gpus() -> None:
    queue = QueueSetting(queue="q")
    given = changed(queue, False, {"limit": "2.5", "guarantee": "0", "deserved": "0.001"})
    assert (given.capability_gpu_milli, given.guarantee_gpu_milli) == (2500, 0)
    assert given.deserved_gpu_milli == 1
    assert changed(given, False, {"limit": "none"}).capability_gpu_milli is None
    for text in ("8Gi", "0.0001", "-1", "1e3", ""):
        with pytest.raises(WrongInput, match=rf"--limit '{text}': right is a number of GPUs"):
            changed(queue, False, {"limit": text})


def test_a_queue_may_give_its_jobs_no_grace() -> None:
    queue = QueueSetting(queue="q")
    assert changed(queue, False, {"default_grace": "0s"}).defaults.grace_s == 0.0
    with pytest.raises(WrongInput, match="'0s' is no duration"):
        changed(queue, False, {"default_max_run": "0s"})
