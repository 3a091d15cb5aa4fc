import pytest

from berthmaster.cli.fleet_commands import changed, queue_place
from berthmaster.cli.requests import WrongInput
from berthmaster.messages.control import QueuePlace, QueueSetting


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
    flags = {"places": ("hub=team/main", "ml")}
    after = QueueSetting(
        queue="q",
        via="hub",
        places={
            "hub": QueuePlace(namespace="team", local_queue="main"),
            "*": QueuePlace(namespace="ml"),
        },
    )
    assert changed(before, False, flags) == after
    assert changed(after, False, {"via": "direct", "places": ()}).places == after.places
    assert changed(after, False, {"via": "direct"}).via == "direct"
