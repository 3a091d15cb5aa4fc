"""What a 403 means, over the life of a server."""

import pytest

from berthmaster.lib.kube.denials import (
    FORGOTTEN_S,
    GRACE_S,
    Denials,
    by_authorizer,
    is_about_object,
)
from berthmaster.lib.kube.errors import Forbidden, Status, status_error

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


WEBHOOK = 'admission webhook "validate.example.com" denied the request: '
POLICY = "jobs \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: "


@pytest.mark.parametrize(
    ("code", "reason", "message", "of_object"),
    [
        (422, "Invalid", 'Job.batch "a" is invalid: spec: Invalid value: "x"', True),
        (400, "BadRequest", "Job in version v1 cannot be handled", True),
        (413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728", True),
        (403, "Forbidden", f"{WEBHOOK}image of an unknown registry", True),
        (403, "Forbidden", f'{WEBHOOK}User "ann" may not run this', True),
        (403, "Forbidden", f"{WEBHOOK}two\nlines", True),
        (400, "", f"{WEBHOOK}no label team", True),
        (422, "Invalid", f"{POLICY}failed expression: size(x) < 5", True),
        (403, "Forbidden", f"{POLICY}no", True),
        (401, "Unauthorized", f"{POLICY}no", True),
        (403, "Forbidden", 'jobs is forbidden: User "us" cannot create "jobs"', False),
        (403, "Forbidden", 'jobs "a" is forbidden: exceeded quota: gpus', False),
        (403, "Forbidden", "unable to create new content: namespace is being terminated", False),
        (403, "Forbidden", 'jobs "a" is forbidden: not yet ready to handle request', False),
        (400, "", f"{WEBHOOK}can only submit job to queue with state `Open`", False),
        (403, "Forbidden", f"{WEBHOOK}Quota of the team is used up", False),
        (401, "Unauthorized", "Unauthorized", False),
        (404, "NotFound", "the server could not find the requested resource", False),
        (404, "NotFound", f"{WEBHOOK}no such thing here", False),
        (409, "Conflict", f"{WEBHOOK}later", False),
        (429, "TooManyRequests", f"{WEBHOOK}busy", False),
        (400, "", "<html>400 Bad Request</html>", False),
        (413, "", "<html>413 Request Entity Too Large</html>", False),
        (500, "InternalError", 'failed calling webhook "v.example.com": timed out', False),
        (500, "InternalError", f"{WEBHOOK}a fault of mine", False),
        (503, "ServiceUnavailable", "apiserver not ready", False),
        (504, "Timeout", "Timeout: request did not complete", False),
    ],
)
def test_a_refusal_is_about_the_object_or_about_the_cluster(
    code: int, reason: str, message: str, of_object: bool
) -> None:
    error = status_error(Status(code=code, reason=reason, message=message), "/jobs")
    assert is_about_object(error) is of_object
    if isinstance(error, Forbidden):
        assert by_authorizer(error) is ('User "us"' in message)
