"""Answers one AdmissionReview: whether the new Workload loses its nomination. Pure.

::

    reply = answer(body)        # bytes of the API server's request
    reply.status, reply.body, reply.result

The rule is that of deploy/chart/nominations.yaml; a test compares the two. A request that cannot be
understood gets status 400. A Workload that cannot be read is refused with its field, as the policy
refuses it.
"""

from base64 import b64encode
from typing import Final, Literal, NamedTuple

import msgspec

from berthmaster.lib.kube.objects import Struct
from berthmaster.lib.kueue.contract import nomination_over
from berthmaster.lib.kueue.workloads import Workload
from berthmaster.lib.runtime.visible_text import visible

VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
PATCH: Final = b'[{"op":"replace","path":"/status/nominatedClusterNames","value":[]}]'
MAX_WHY_CHARS: Final = 300
OK: Final = 200
BAD_REQUEST: Final = 400

Result = Literal["cleared", "unchanged", "refused", "malformed"]


class Reply(NamedTuple):
    """The HTTP answer, and what the review came to."""

    status: int  # of HTTP
    body: bytes
    result: Result
    why: str = ""  # reason of refused and malformed


class _Request(Struct, frozen=True):
    uid: str
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    request: _Request | None = None


_REVIEWS: Final = msgspec.json.Decoder(_Review)
_WORKLOADS: Final = msgspec.json.Decoder(Workload)


def answer(body: bytes) -> Reply:
    """Return the answer to an AdmissionReview."""
    try:
        review = _REVIEWS.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        return malformed(f"the body is no AdmissionReview: {error}")
    if (review.api_version, review.kind) != (VERSION, KIND):
        told = f"{review.api_version or 'no apiVersion'}, {review.kind or 'no kind'}"
        return malformed(f"the body is {told}; right is {VERSION}, {KIND}")
    request = review.request
    if request is None or not request.uid:
        return malformed("request.uid is missing: the API server sets it in each review")
    workloads = []
    for name, raw in (("oldObject", request.old_object), ("object", request.object)):
        try:
            workloads.append(_WORKLOADS.decode(raw))
        except (msgspec.MsgspecError, RecursionError) as error:
            return _refused(request.uid, f"request.{name} is no Workload of v1beta2: {error}")
    if not nomination_over(*workloads):
        return _allowed({"uid": request.uid, "allowed": True}, "unchanged")
    patch = {"patchType": "JSONPatch", "patch": b64encode(PATCH).decode()}
    return _allowed({"uid": request.uid, "allowed": True, **patch}, "cleared")


def malformed(why: str, status: int = BAD_REQUEST) -> Reply:
    """Return the answer to a request that is no AdmissionReview."""
    why = visible(why)[:MAX_WHY_CHARS]
    return Reply(status, msgspec.json.encode({"error": why}), "malformed", why)


def _refused(uid: str, why: str) -> Reply:
    why = visible(why)[:MAX_WHY_CHARS]
    status = {"code": BAD_REQUEST, "reason": "BadRequest", "message": why}
    response = {"uid": uid, "allowed": False, "status": status}
    return Reply(OK, _encoded(response), "refused", why)


def _allowed(response: dict[str, object], result: Result) -> Reply:
    return Reply(OK, _encoded(response), result)


def _encoded(response: dict[str, object]) -> bytes:
    return msgspec.json.encode({"apiVersion": VERSION, "kind": KIND, "response": response})
