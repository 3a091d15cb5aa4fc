"""A hub and a worker in miniature, as core and steps see them, for stories and laws.

Steps are carried out as the writer would, in one instant; time and misfortune are the
test's. The hub's objects are real ones, so that the book reads what it reads in life.
"""

import base64
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from berthmaster.hub.credentials.core import manifests, names
from berthmaster.hub.credentials.core.credentials import Credentials
from berthmaster.hub.credentials.core.index import ClusterIndex
from berthmaster.hub.credentials.core.instructions import (
    Adopt,
    Check,
    Empty,
    Forget,
    Instruction,
    Look,
    Mint,
    Prepare,
    Publish,
    Register,
    Revoke,
    Step,
    Sweep,
    Unregister,
)
from berthmaster.hub.credentials.core.objects import Secret
from berthmaster.hub.credentials.core.observed import Bootstrap, Endpoint, Minted, Survey
from berthmaster.hub.credentials.core.rights import DEFAULT_FRAMEWORKS, rules
from berthmaster.hub.credentials.core.stages import Times
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.errors import Unauthorized, Unreachable
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.selector import parse_selector
from berthmaster.lib.kueue.multikueue import MultiKueueCluster, MultiKueueConfig

T = TypeVar("T", bound=Object)
CLUSTER: Final = "east"
LIFE_S: Final = 1000.0
GRACE_S: Final = 20.0
TIMES: Final = Times(grace_s=GRACE_S, check_s=60.0)
HERE: Final = Endpoint("https://east:6443", b"CA of east")
THERE: Final = Endpoint("https://east:6443", b"CA of its successor")


def make(kind: type[T], body: dict[str, Any]) -> T:
    """An object as the API server would send it."""
    return msgspec.convert(msgspec.to_builtins(body), kind)


def book(selector: str = "") -> ClusterIndex:
    permission = manifests.permission_spec(rules(DEFAULT_FRAMEWORKS))
    return ClusterIndex(parse_selector(selector), permission, "24h0m0s")


def profile(name: str = CLUSTER, namespace: str = "fleet", **more: Any) -> ClusterProfile:
    labels = more.pop("labels", {})
    meta = {"name": name, "namespace": namespace, "labels": labels}
    return make(ClusterProfile, {"metadata": meta, "status": more})


def failed(why: str, error: type[Exception] = Unreachable) -> Answer:
    """A step that was not done."""
    return Answer(Outcome.LATER, error.__name__, why)


def bootstrap(endpoint: Endpoint = HERE, version: str = "1") -> Bootstrap:
    return Bootstrap(endpoint, "berth-system/boot", version)


class Worker:
    """A worker cluster: its account and what is bound there."""

    def __init__(self) -> None:
        self.account = False
        self.bound: dict[str, float] = {}
        self.minted: list[str] = []
        self.away = False


class World:
    """Hub, workers and one life of credentials after the other."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self.workers = {HERE.fingerprint: Worker(), THERE.fingerprint: Worker()}
        self.secret: Secret | None = None
        self.registered: MultiKueueCluster | None = None
        self.known = False
        self.source: Bootstrap | None = None
        self.listed = False
        self._version = 0
        self.replaced: dict[str, float] = {}  # serial: when it was replaced in the hub's Secret
        self.core = Credentials(book(), TIMES)
        self.steps: list[Step] = []
        self.events: list[KubeEvent] = []
        self.watch: Callable[[], None] = lambda: None  # called after each step

    @property
    def worker(self) -> Worker:
        """The one that the hub's Secret is for, else the first."""
        target = self.core.index.observe(CLUSTER).secret
        found = self.workers.get(target.target) if target is not None else None
        return found or self.workers[HERE.fingerprint]

    # ---- what people do

    def know(self, known: bool = True) -> None:
        self.known = known
        self._tell(profile(), gone=not known)

    def give(self, source: Bootstrap | None) -> None:
        self.source = source
        touched = self.core.index.bootstrap(("berth-system", "boot"), CLUSTER, source)
        self.core.touched(touched)

    def list_it(self, listed: bool = True) -> None:
        self.listed = listed
        clusters = [CLUSTER] if listed else ["other"]
        body = {"metadata": {"name": "all"}, "spec": {"clusters": clusters}}
        self._tell(make(MultiKueueConfig, body))

    def _tell(self, found: Object, *, gone: bool = False) -> None:
        self.core.touched(self.core.index.put(found, gone=gone))

    # ---- lives

    def restart(self) -> None:
        """kill -9, and a new life that sees what is there."""
        self.core = Credentials(book(), TIMES)
        self.steps = []
        if self.known:
            self.know()
        self.list_it(self.listed)
        self.give(self.source)
        if self.secret is not None:
            self.core.index.secret(self.secret)
        if self.registered is not None:
            self.core.index.put(self.registered)
        self.core.begin()

    def act(self) -> list[Step]:
        found = self._heard(self.core.act(self.now_s))
        assert len(self.core.aside) == 0
        self.steps += found
        return found

    def _heard(self, asked: list[Instruction]) -> list[Step]:
        self.events += [one for one in asked if isinstance(one, KubeEvent)]
        return [one for one in asked if not isinstance(one, KubeEvent)]

    def settle(self, limit: int = 40) -> list[str]:
        """Carry out all that it wants until it wants nothing; the steps' names."""
        told: list[str] = []
        for _ in range(limit):
            self.act()
            if not self.steps:
                return told
            while self.steps:
                step = self.steps.pop(0)
                told.append(type(step).__name__)
                self.done(step, self.do(step))
        raise AssertionError(f"it never rests: {told}")

    def done(self, step: Step, answer: Answer) -> None:
        assert self._heard(self.core.on_answer(step, answer, self.now_s)) == []
        self.watch()

    def fail(self, step: Step, why: str = "no answer") -> None:
        """It was not done."""
        self.done(step, failed(why))

    def later(self, s: float) -> None:
        self.now_s += s

    # ---- what the writer does

    def do(self, step: Step) -> Answer:
        """Carry out a step against the world as it is."""
        match step:
            case Prepare() | Look() | Mint() | Sweep() | Revoke():
                worker = self.workers[step.source.target]
                if worker.away:
                    return failed("no answer")
                return self._in_worker(worker, step)
            case Check():
                if self.worker.away:
                    return failed("no answer")
                if step.serial not in self.worker.bound:
                    return failed("unknown", Unauthorized)
                return Answer()
            case Publish():
                return self._publish(step)
            case Register():
                assert self.registered is None
                body = manifests.multikueue_cluster(CLUSTER)
                self.registered = self.stored(MultiKueueCluster, body)
                self._tell(self.registered)
            case Unregister():
                assert not self.listed, "taken away from under a configuration"
                assert self.registered is not None
                self._tell(self.registered, gone=True)
                self.registered = None
            case Empty() | Forget():
                self._let_go(step)
            case Adopt():
                serial = step.token.serial
                return Answer(
                    found=Minted(step.endpoint.fingerprint, serial, 0, 0, "t", managed=True)
                )
            case _:
                raise AssertionError(step)
        return Answer()

    def _in_worker(self, worker: Worker, step: Prepare | Look | Mint | Sweep | Revoke) -> Answer:
        source = step.source
        match step:
            case Mint():
                if not worker.account:
                    return failed("no account")
                worker.bound[step.serial] = self.now_s
                worker.minted.append(step.serial)
                ends_s = self.now_s + LIFE_S
                return Answer(
                    found=Minted(source.target, step.serial, self.now_s, ends_s, "secret")
                )
            case Sweep():
                for serial in step.serials:
                    worker.bound.pop(serial, None)
                return Answer()
            case Revoke():
                worker.account = False
                worker.bound.clear()
                self.replaced.clear()  # that was meant
            case Prepare():
                worker.account = True
            case _:
                pass
        prepared = isinstance(step, Prepare)
        bound = dict(worker.bound)
        survey = Survey(source.target, source.version, bound, worker.account, prepared)
        return Answer(found=survey)

    def _publish(self, step: Publish) -> Answer:
        known = self.core.index.observe(CLUSTER).secret
        if (self.secret is None) != (step.held is None) or (
            self.secret is not None
            and step.held is not None
            and self.secret.metadata.resource_version != step.held.version
        ):
            return failed("conflict")
        if known is not None and known.usable and self.works():
            self.replaced[known.serial] = self.now_s
        body = manifests.hub_secret(CLUSTER, step.endpoint, step.minted, step.told)
        self.secret = self.stored(Secret, body)
        self.core.touched(self.core.index.secret(self.secret))
        return Answer()

    def _let_go(self, step: Empty | Forget) -> None:
        assert self.secret is not None
        if isinstance(step, Forget):
            self.core.touched(self.core.index.secret(self.secret, gone=True))
            self.secret = None
            return
        body = msgspec.to_builtins(self.secret)
        body.pop("data", None)
        self.secret = self.stored(Secret, body)
        self.core.touched(self.core.index.secret(self.secret))

    def stored(self, kind: type[T], body: dict[str, Any]) -> T:
        self._version += 1
        plain = dict(body)
        plain["metadata"] = {**plain["metadata"], "resourceVersion": str(self._version), "uid": "u"}
        return make(kind, plain)

    # ---- what is so

    @property
    def serial(self) -> str:
        """Of the token that Kueue has; "" = none."""
        held = self.core.index.observe(CLUSTER).secret if self.secret is not None else None
        return held.serial if held is not None and held.usable else ""

    def token(self) -> str:
        assert self.secret is not None
        assert self.secret.data is not None
        text = base64.b64decode(self.secret.data["kubeconfig"])
        return str(msgspec.json.decode(text)["users"][0]["user"]["token"])

    def works(self) -> bool:
        """Whether the token that Kueue has is known to its worker."""
        return self.serial in self.worker.bound


def secret_body(cluster: str = CLUSTER, **notes: str) -> dict[str, Any]:
    """A Secret of ours, as somebody may have spoiled it."""
    return {
        "metadata": {
            "name": names.hub_secret(cluster),
            "labels": manifests.labels(cluster),
            "annotations": {names.CLUSTER: cluster, **notes},
        },
        "data": {"kubeconfig": "eA=="},
    }
