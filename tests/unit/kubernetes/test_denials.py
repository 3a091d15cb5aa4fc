"""What a 403 means, over the life of a server."""

from berthmaster.kubernetes.denials import FORGOTTEN_S, GRACE_S, Denials
from berthmaster.kubernetes.errors import Forbidden

NO_RIGHT = Forbidden(403, "Forbidden", 'jobs is forbidden: User "us" cannot create "jobs"', "/jobs")
QUOTA = Forbidden(403, "Forbidden", 'jobs "a" is forbidden: exceeded quota: gpus', "/jobs")
HERE, THERE = ("MakeJob", "team"), ("MakeJob", "other")


def test_a_refusal_is_tried_again_after_growing_pauses_and_is_then_the_last_word() -> None:
    denials = Denials()
    now_s, pauses = 1000.0, []
    while (pause_s := denials.pause_s(HERE, NO_RIGHT, now_s)) is not None:
        pauses.append(pause_s)
        now_s += pause_s
    assert pauses == [0.25, 0.25, 0.5, 1.0, 2.0, 4.0]
    assert now_s == 1000.0 + GRACE_S
    # Whoever tries on now and then hears the same, without a new grace.
    assert denials.pause_s(HERE, NO_RIGHT, now_s + 15) is None
    assert denials.pause_s(HERE, NO_RIGHT, now_s + 30) is None


def test_what_was_allowed_since_or_not_asked_for_long_is_doubted_anew() -> None:
    denials = Denials()
    assert denials.pause_s(HERE, NO_RIGHT, 0.0) == 0.25
    assert denials.pause_s(HERE, NO_RIGHT, GRACE_S) is None
    denials.allowed(HERE)
    assert denials.pause_s(HERE, NO_RIGHT, GRACE_S + 1) == 0.25
    assert denials.pause_s(HERE, NO_RIGHT, GRACE_S + 1 + FORGOTTEN_S) is None
    assert denials.pause_s(HERE, NO_RIGHT, GRACE_S + 2 + 2 * FORGOTTEN_S) == 0.25


def test_one_namespaces_missing_role_says_nothing_of_another() -> None:
    denials = Denials()
    assert denials.pause_s(HERE, NO_RIGHT, 0.0) == 0.25
    assert denials.pause_s(HERE, NO_RIGHT, GRACE_S) is None
    assert denials.pause_s(THERE, NO_RIGHT, GRACE_S) == 0.25


def test_a_quota_or_a_webhook_that_says_no_is_believed_at_once() -> None:
    denials = Denials()
    assert denials.pause_s(HERE, QUOTA, 0.0) is None
    # It was not the rights: what was refused before for want of them is a matter of the past.
    assert denials.pause_s(HERE, NO_RIGHT, GRACE_S) == 0.25
