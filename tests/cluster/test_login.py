"""Tokens of ServiceAccounts, reviewed by a real API server for the login service."""

import asyncio
import io
from pathlib import Path

import pytest

from berthmaster.control.login.core.errors import Refused, Unavailable
from berthmaster.control.login.core.mapping import (
    KubernetesIssuer,
    ServiceAccountRule,
    Wanted,
    stands_for,
)
from berthmaster.control.login.reviews import Reviewer
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.runtime.log import Log
from tests.support.chart import one, render

RED = Wanted("", "red")
AUDIENCE = "berthmaster"


def issuer(kubeconfig: Path, namespace: str) -> KubernetesIssuer:
    rule = ServiceAccountRule(service_account=f"{namespace}/berth-agent", cluster="red")
    return KubernetesIssuer(
        name="red", issuer="x", audience=AUDIENCE, rules=(rule,), kubeconfig=str(kubeconfig)
    )


def token_for(plane: Plane, namespace: str, account: str, *audiences: str) -> str:
    """A token for these audiences, as a projected volume has it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    spec = {"audiences": list(audiences), "expirationSeconds": 600}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    made: str = plane.api.create(path, body)["status"]["token"]
    return made


def test_a_token_is_good_for_our_audience_until_its_account_goes(
    planes: Planes, namespace: str
) -> None:
    plane = planes.workers[0]
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    for name in ("berth-agent", "reviewer", "stranger"):
        plane.api.create(accounts, {"metadata": {"name": name}})
    subject = {"kind": "ServiceAccount", "name": "reviewer", "namespace": namespace}
    objects = render("hub", {"hub": {"services": ["login"]}})
    kinds = ("ClusterRole", "ClusterRoleBinding")
    rights = [one(objects, kind, "berthmaster-login") for kind in kinds]
    for document in rights:
        bound = {"subjects": [subject]} if "subjects" in document else {}
        plane.api.apply({**document, **bound})
    try:
        reviewing = plane.kubeconfig_with_token(plane.token_for(namespace, "reviewer"))
        other = plane.kubeconfig_with_token(plane.token_for(namespace, "stranger"))
        ours = token_for(plane, namespace, "berth-agent", AUDIENCE)
        both = token_for(plane, namespace, "berth-agent", AUDIENCE, "another")
        not_ours = token_for(plane, namespace, "berth-agent", "another")
        for_api = plane.token_for(namespace, "berth-agent")
        strangers = token_for(plane, namespace, "stranger", AUDIENCE)

        async def whose() -> None:
            asked = issuer(reviewing, namespace)
            reviewer = await Reviewer.open(asked, Log("x", level="error", stream=io.BytesIO()))
            try:
                for token in (ours, both):
                    agent = await reviewer.identity(token)
                    assert agent.subject == f"system:serviceaccount:{namespace}:berth-agent"
                    assert stands_for(asked, agent, RED)
                assert not stands_for(asked, await reviewer.identity(strangers), RED)
                for token in (not_ours, for_api, ours[:-20] + "A" * 20, "rubbish"):
                    with pytest.raises(Refused):
                        await reviewer.identity(token)
                await asyncio.to_thread(plane.api.delete, f"{accounts}/berth-agent")
                # The server keeps a review for some seconds.
                deadline = asyncio.get_running_loop().time() + 60
                while await known(reviewer, ours):
                    assert asyncio.get_running_loop().time() < deadline
                    await asyncio.sleep(0.2)
            finally:
                await reviewer.close()
            may_not = await Reviewer.open(
                issuer(other, namespace), Log("x", level="error", stream=io.BytesIO())
            )
            with pytest.raises(Unavailable, match=r"red: its API server does not say \(Forbidden"):
                await may_not.identity(strangers)
            await may_not.close()

        asyncio.run(whose())
    finally:
        for document in reversed(rights):
            plane.api.delete(plane.api.path_of(document))


async def known(reviewer: Reviewer, token: str) -> bool:
    try:
        await reviewer.identity(token)
    except Refused:
        return False
    return True
