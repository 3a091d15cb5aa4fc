"""What a write says to the API server, and what an answer means for the next try."""

import asyncio
from typing import Any

import msgspec
import pytest

from berthmaster.hub.ocm.core.instructions import (
    CreateProfile,
    CreateScore,
    Write,
    WriteProperties,
    WriteScore,
)
from berthmaster.hub.ocm.writer import OcmWriter, changed
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.shell_contract import Answer, Outcome, answer_to
from berthmaster.lib.kube.errors import (
    AlreadyExists,
    ApiError,
    BadAnswer,
    Conflict,
    Forbidden,
    Invalid,
    KubernetesError,
    NotFound,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from berthmaster.lib.kube.objects import Condition, timestamp
from berthmaster.lib.ocm.core.kept_objects import Key
from tests.unit.hub.ocm.builders import NAME, T0_S, placed

EAST: Key = ("score", "east", NAME)
ROOT = "/apis/cluster.open-cluster-management.io/v1alpha1"
PATH = f"{ROOT}/namespaces/east/addonplacementscores/{NAME}"
WRITE = WriteScore(
    key=EAST,
    resource_version="7",
    scores={"gpuIdle": 3},
    valid_until=timestamp(T0_S + 300),
    status="True",
    reason="Live",
    message="",
    since=timestamp(T0_S),
    others=(Condition(type="Audited", status="True", reason="Yes"),),
)


class Server(Client):
    """A client that answers by itself, and keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, str, Any]] = []

    def _next(self, verb: str, path: str, body: Any) -> Any:
        plain = msgspec.json.decode(msgspec.json.encode(body)) if body is not None else None
        self.asked.append((verb, path, plain))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def create(self, path: str, body: object, kind: Any, **rest: Any) -> Any:
        assert rest == {"field_manager": "berthmaster-ocm"}
        return self._next("create", path, body)

    async def merge_patch(self, path: str, body: object, kind: Any, **rest: Any) -> Any:
        assert rest["field_manager"] == "berthmaster-ocm"
        return self._next(f"patch {rest['resource_version']}", path, body)

    async def get(self, path: str, kind: Any, **rest: Any) -> Any:
        return self._next("get", path, None)


def api(kind: type[ApiError], status: int = 409) -> ApiError:
    return kind(status, kind.__name__, "no", "/path")


def carried_out(server: Server, write: Write) -> Answer:
    async def story() -> Answer:
        return await OcmWriter(server).carry_out(write)

    return asyncio.run(story())


def test_a_status_is_written_with_the_version_that_was_looked_at() -> None:
    thing = placed()
    server = Server(thing)
    assert carried_out(server, WRITE) == Answer(found=thing)
    status = {
        "scores": [{"name": "gpuIdle", "value": 3}],
        "validUntil": timestamp(T0_S + 300),
        "conditions": [
            {"type": "Audited", "status": "True", "reason": "Yes"},
            {
                "type": "Fresh",
                "status": "True",
                "reason": "Live",
                "message": "",
                "lastTransitionTime": timestamp(T0_S),
            },
        ],
    }
    assert server.asked == [("patch 7", f"{PATH}/status", {"status": status})]


@pytest.mark.parametrize(
    ("write", "path", "body"),
    [
        (
            CreateScore(EAST),
            PATH.rpartition("/")[0],
            {
                "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
                "kind": "AddOnPlacementScore",
                "metadata": {
                    "name": NAME,
                    "namespace": "east",
                    "labels": {"app.kubernetes.io/managed-by": "berthmaster"},
                },
            },
        ),
        (
            CreateProfile(("profile", "fleet", "east"), "us"),
            "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/fleet/clusterprofiles",
            {
                "apiVersion": "multicluster.x-k8s.io/v1alpha1",
                "kind": "ClusterProfile",
                "metadata": {
                    "name": "east",
                    "namespace": "fleet",
                    "labels": {
                        "app.kubernetes.io/managed-by": "berthmaster",
                        "x-k8s.io/cluster-manager": "us",
                    },
                },
                "spec": {"clusterManager": {"name": "us"}, "displayName": "east"},
            },
        ),
    ],
)
def test_what_is_made_is_labelled_as_ours(write: Write, path: str, body: Any) -> None:
    server = Server(placed())
    assert carried_out(server, write).outcome is Outcome.DONE
    assert server.asked == [("create", path, body)]


def test_profile_patch_holds_all_properties_and_conditions() -> None:
    listed = [{"name": "a", "value": "b"}]
    conditions = [{"type": "Joined", "status": "True"}]
    profile = WriteProperties(
        key=("profile", "f", "e"),
        resource_version="4",
        properties=listed,
        conditions=conditions,
    )
    assert changed(profile) == {"status": {"properties": listed, "conditions": conditions}}
    named = msgspec.structs.replace(profile, version="v1.36.3")
    assert changed(named)["status"]["version"] == {"kubernetes": "v1.36.3"}


@pytest.mark.parametrize(
    ("write", "error"), [(WRITE, api(Conflict)), (CreateScore(EAST), api(AlreadyExists))]
)
def test_where_somebody_else_was_first_what_is_there_is_read(write: Write, error: ApiError) -> None:
    theirs = placed(version=9, ours=False)
    done = carried_out(Server(error, theirs), write)
    assert (done.outcome, done.found) == (Outcome.CONFLICT, theirs)
    gone = carried_out(Server(error, api(NotFound, 404)), write)
    assert (gone.outcome, gone.found) == (Outcome.CONFLICT, None)
    away = carried_out(Server(error, Unreachable("cut")), write)
    assert (away.outcome, away.found) == (Outcome.LATER, None)


def test_a_missing_namespace_is_another_thing_than_an_object_that_vanished() -> None:
    assert carried_out(Server(api(NotFound, 404)), CreateScore(EAST)).outcome is Outcome.GONE
    vanished = carried_out(Server(api(NotFound, 404)), WRITE)
    assert (vanished.outcome, vanished.found) == (Outcome.GONE, None)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (api(Forbidden, 403), Outcome.DENIED),
        (api(Unauthorized, 401), Outcome.LATER),
        (api(Invalid, 422), Outcome.DENIED),
        (api(ApiError, 400), Outcome.DENIED),
        (api(NotFound, 404), Outcome.GONE),
        (api(ServerError, 503), Outcome.LATER),
        (api(TooManyRequests, 429), Outcome.LATER),
        (Unreachable("cut"), Outcome.LATER),
        (TimedOut("late"), Outcome.LATER),
        (BadAnswer("what"), Outcome.LATER),
    ],
)
def test_every_failure_sets_next_try(error: KubernetesError, outcome: Outcome) -> None:
    assert answer_to(error).outcome is outcome
    answer = carried_out(Server(error), WRITE)
    assert (answer.outcome, answer.found) == (outcome, None)
    assert answer.why
