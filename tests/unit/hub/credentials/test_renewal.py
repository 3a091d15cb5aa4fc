"""When a bootstrap token is renewed, what takes its place, and what a failure leaves."""

import asyncio
import base64
import io
import json
from typing import Any

import pytest

from berthmaster.hub.credentials.bootstrap import Bootstraps, life_of
from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.described import KUBECONFIG
from berthmaster.hub.credentials.core.objects import Secret
from berthmaster.hub.credentials.core.observed import Bootstrap, Life
from berthmaster.hub.credentials.renewal import Renewal
from berthmaster.lib.kube.errors import Conflict, Forbidden, KubernetesError
from berthmaster.lib.runtime.log import Log
from tests.unit.hub.credentials.world import make
from tests.unit.lib.kube.papers import Authority

CA = Authority().pem
BORN_S, DAY_S = 1_000_000.0, 86_400.0


def token_of(**claims: Any) -> str:
    told = {"sub": "system:serviceaccount:ours:boot", "iat": BORN_S, "exp": BORN_S + DAY_S}
    body = base64.urlsafe_b64encode(json.dumps({**told, **claims}).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


def secret(token: str, version: str = "7", **user: Any) -> Secret:
    where = {"server": "https://east:6443"}
    where["certificate-authority-data"] = base64.b64encode(CA).decode()
    text = {
        "clusters": [{"name": "c", "cluster": where}],
        "users": [{"name": "u", "user": {"token": token, **user}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    meta = {"name": "east", "namespace": "hub", "resourceVersion": version}
    data = {KUBECONFIG: base64.b64encode(json.dumps(text).encode()).decode()}
    return make(Secret, {"metadata": meta, "data": data})


class Fakes:
    """A worker that gives tokens and a hub that takes Secrets."""

    def __init__(self) -> None:
        self.given: list[Life] = []
        self.written: list[tuple[str, str, str]] = []  # path, version, token
        self.fails: KubernetesError | None = None
        self.refuses: KubernetesError | None = None

    async def give_token(self, cluster: str, source: Bootstrap, life: Life) -> str:
        if self.fails is not None:
            raise self.fails
        self.given.append(life)
        return "fresh"

    async def merge_patch(
        self, path: str, body: dict[str, Any], kind: type, *, resource_version: str
    ) -> None:
        if self.refuses is not None:
            raise self.refuses
        text = json.loads(base64.b64decode(body["data"][KUBECONFIG]))
        self.written.append((path, resource_version, text["users"][0]["user"]["token"]))


class Rig:
    def __init__(self, token: str, *, renew_after_s: float = 0.0) -> None:
        self.now_s = BORN_S
        self.fakes, self.log = Fakes(), io.BytesIO()
        found = Bootstraps()
        cluster, source = found.read(secret(token))
        assert isinstance(source, Bootstrap)
        self.ways_in = [(cluster, source)]
        self.renewal = Renewal(
            self.fakes,  # type: ignore[arg-type]  # as much of a client as it uses
            self.fakes,  # type: ignore[arg-type]
            found,
            renew_after_s=renew_after_s,
            now=lambda: self.now_s,
            log=Log("credentials", stream=self.log),
        )

    def look(self, after_s: float) -> None:
        self.now_s = BORN_S + after_s
        asyncio.run(self.renewal.look(self.ways_in))


def test_a_day_s_token_is_renewed_for_another_day_after_two_thirds_of_it() -> None:
    rig = Rig(token_of())
    rig.look(DAY_S * 0.66)
    assert rig.fakes.given == []
    rig.look(DAY_S * 0.67)
    assert rig.fakes.given == [Life("ours", "boot", BORN_S, BORN_S + DAY_S)]
    assert rig.fakes.given[0].lasts_s == DAY_S
    assert rig.fakes.written == [("/api/v1/namespaces/hub/secrets/east", "7", "fresh")]
    assert rig.renewal.renewed == 1
    assert b"fresh" not in rig.log.getvalue()


def test_a_person_may_ask_for_less_patience() -> None:
    rig = Rig(token_of(), renew_after_s=60.0)
    rig.look(59.0)
    assert rig.fakes.given == []
    rig.look(60.0)
    assert len(rig.fakes.given) == 1


@pytest.mark.parametrize(
    "token",
    [
        "opaque",
        "a.b.c",
        "e30.bm8.c2ln",
        token_of(sub="system:node:worker-1"),
        token_of(sub="system:serviceaccount:ours:"),
        token_of(exp=0),
        token_of(iat=BORN_S + 2 * DAY_S),
        token_of(exp="soon"),
    ],
)
def test_other_ways_in_are_left_as_they_are(token: str) -> None:
    rig = Rig(token)
    rig.look(100 * DAY_S)
    assert (rig.fakes.given, rig.fakes.written, rig.renewal.failing) == ([], [], {})


def test_one_who_acts_as_another_is_not_renewed_as_himself() -> None:
    found = Bootstraps()
    _, source = found.read(secret(token_of(), **{"as": "jane"}))
    assert isinstance(source, Bootstrap)
    access = found.access(source)
    assert access is not None
    assert life_of(access) is None


def test_a_failure_is_told_once_and_tried_again() -> None:
    rig = Rig(token_of())
    rig.fakes.fails = Forbidden(403, "Forbidden", "it may not", "")
    rig.look(DAY_S)
    rig.look(DAY_S)
    assert "it may not" in rig.renewal.failing["east"]
    assert rig.log.getvalue().count(b"bootstrap token renewal failed") == 1
    rig.fakes.fails = None
    rig.look(DAY_S)
    assert (rig.renewal.failing, rig.renewal.renewed) == ({}, 1)


def test_what_a_person_writes_meanwhile_stays() -> None:
    rig = Rig(token_of())
    rig.fakes.refuses = Conflict(409, "Conflict", "changed", "")
    rig.look(DAY_S)
    assert (rig.renewal.failing, rig.renewal.renewed) == ({}, 0)


def test_names_of_the_way_in_differ_by_hub_and_by_cluster() -> None:
    found = {names.bootstrap(hub, cluster) for hub in ("a", "b") for cluster in ("x", "y")}
    assert len(found) == 4
