"""The core beside a Karmada control plane, a log and a member, all in memory and in its own time.

The resolver is the test (``place``), and so are Karmada's controllers (``stands``, ``pods``).
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from berthmaster.hub.karmada.core.instructions import PutBinding, PutCondition, PutOverride, Write
from berthmaster.hub.karmada.core.karmada import KarmadaCore
from berthmaster.hub.karmada.core.objects import KarmadaCluster, Policy, ResourceBinding
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent
from berthmaster.lib.kueue.podsets.reading import workload_id
from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.instructions import Outcome, Refused, Stored
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.fleet import PodUse
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import Placed, WorkloadEvent
from tests.support.builders import node

HUB = "plane-one"
TEAM = "team"


def binding(job: str = "train", **spec: Any) -> dict[str, Any]:
    """As Karmada's detector makes it of a Job that asks for eight GPUs."""
    asked = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "8"}
    return {
        "metadata": {
            "name": f"{job}-job",
            "namespace": TEAM,
            "uid": f"{zlib.crc32(job.encode()):08x}-1",
            "generation": 1,
            "annotations": {
                "propagationpolicy.karmada.io/namespace": TEAM,
                "propagationpolicy.karmada.io/name": "plain",
            },
        },
        "spec": {
            "resource": {"apiVersion": "batch/v1", "kind": "Job", "name": job},
            "replicas": 1,
            "replicaRequirements": {"resourceRequest": asked},
            "schedulerName": "berthmaster",
            "placement": {"clusterAffinity": {"clusterNames": ["m1", "m2"]}},
        }
        | spec,
    }


def read(raw: Mapping[str, Any]) -> ResourceBinding:
    """A binding as the API server would send it."""
    return msgspec.json.decode(json.dumps(raw), type=ResourceBinding)


def member(name: str, **spec: Any) -> KarmadaCluster:
    raw = {"metadata": {"name": name}, "spec": spec}
    return msgspec.json.decode(json.dumps(raw), type=KarmadaCluster)


def policy(name: str = "plain", **labels: str) -> Policy:
    told = {f"berthmaster.io/{each}": text for each, text in labels.items()}
    raw = {"metadata": {"name": name, "namespace": TEAM, "labels": told}}
    return msgspec.json.decode(json.dumps(raw), type=Policy)


class World:
    """One core; ``settle`` lets it do all that it can."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.log: list[tuple[int, float, WorkloadEvent]] = []
        self.folds: dict[Key, Workload] = {}
        self.bindings: dict[str, dict[str, Any]] = {}
        self.overrides: dict[str, Mapping[str, Any]] = {}
        self.writes: list[Write] = []
        self.told: list[KubeEvent] = []
        self.members = [member("m1"), member("m2")]
        self.policies = [policy()]
        self.uses: dict[str, tuple[PodUse, ...]] = {}  # of each member's one node
        self.core = self._new()

    def _new(self) -> KarmadaCore:
        core = KarmadaCore("karmada/test", {})
        core.know.id = HUB
        for thing in (*self.members, *self.policies, *map(read, self.bindings.values())):
            core.on_object(thing)
        for cluster, uses in self.uses.items():
            core.on_fact(_report(cluster, uses), 1, self.now_s)
        for sequence, at_s, event in self.log:
            core.on_event(event, sequence, at_s)
        core.begin()
        return core

    def restart(self) -> None:
        """Kill -9, and a new one that knows what log, facts and lists say."""
        self.core = self._new()

    # ---- what others do

    def bind(self, job: str = "train", **spec: Any) -> Key:
        self.put(job, binding(job, **spec))
        return key(TEAM, workload_id(job, self.bindings[job]["metadata"]["uid"]))

    def put(self, job: str, raw: dict[str, Any]) -> None:
        self.bindings[job] = raw
        self.core.on_object(read(raw))

    def merge(self, job: str, **parts: Any) -> None:
        self.put(job, _merged(self.bindings[job], parts))

    def drop(self, job: str) -> None:
        self.core.on_object(read(self.bindings.pop(job)), gone=True)

    def stands(self, job: str, cluster: str = "m1", **status: Any) -> None:
        """As Karmada tells of the member's Job; nothing: it is not there any more."""
        items = [{"clusterName": cluster, "applied": True, "status": status}] if status else []
        self.merge(job, status={"aggregatedStatus": items})

    def pods(self, name: Key, count: int = 1, *, attempt: int = 1, cluster: str = "m1") -> None:
        """So many pods of an attempt are on the member's node."""
        of = name.partition("/")[2]
        uses = tuple(
            PodUse(tenant=TEAM, workload=of, attempt=attempt, pod=f"main-x{n}", gpus=(n,))
            for n in range(count)
        )
        self.uses[cluster] = uses
        self.core.on_fact(_report(cluster, uses), 1, self.now_s)

    def place(self, name: Key, cluster: str = "m1") -> None:
        work = self.folds[name]
        assert work.request is not None
        count = sum(pods.count for pods in work.request.pod_sets)
        self.say(
            Placed,
            name,
            cluster=cluster,
            attempt=work.attempt + 1,
            pods=tuple(PodBinding(pod=f"main-{n}", node="n1") for n in range(count)),
            request=work.request,
            decision=1,
            target=Target(via="hub", namespace=TEAM),
        )

    def say(self, kind: type[Any], name: Key, **fields: Any) -> None:
        work = self.folds[name]
        head = {"tenant": work.tenant, "id": work.id, "after": work.sequence}
        self._store(kind(**head, at_s=self.now_s, by="other", **fields))

    # ---- what the core does

    def settle(self, for_s: float = 0.0) -> None:
        """All that it does until time has passed by so much."""
        until_s = self.now_s + for_s
        while True:
            for _ in range(50):
                if not self._once():
                    break
            else:
                raise AssertionError(f"it goes on for ever: {self.writes[-3:]}")
            self.now_s = min(self.core.wake_at_s(), until_s)
            if self.now_s >= until_s and self.core.wake_at_s() > until_s:
                return

    def _once(self) -> bool:
        out = list(self.core.act(self.now_s))
        appends, self.core.appends = self.core.appends, []
        for append in appends:
            outcome = self._append(append.event)
            self.core.on_appended(append.ref, outcome, self.now_s)
        for one in out:
            if isinstance(one, KubeEvent):
                self.told.append(one)
            else:
                self.writes.append(one)
                self._write(one)
                self.core.on_answer(one, Answer(), self.now_s)
        return bool(out or appends)

    def _append(self, event: WorkloadEvent) -> Outcome:
        known = self.folds.get(key(event.tenant, event.id))
        if event.after != (known.sequence if known is not None else 0):
            return Refused(known.sequence if known is not None else 0)
        self._store(event)
        return Stored(len(self.log))

    def _store(self, event: WorkloadEvent) -> None:
        name, sequence = key(event.tenant, event.id), len(self.log) + 1
        fold = self.folds.setdefault(name, Workload(tenant=event.tenant, id=event.id))
        assert offer(fold, event, sequence, self.now_s) is Verdict.COUNTED, event
        self.log.append((sequence, self.now_s, event))
        self.core.on_event(event, sequence, self.now_s)

    def _write(self, write: Write) -> None:
        job = write.binding.spec.resource.name
        match write:
            case PutBinding():
                told = {"annotations": write.annotations}
                self.merge(job, metadata=told, spec=write.spec)
            case PutOverride():
                self.overrides[write.policy["metadata"]["name"]] = write.policy
            case PutCondition():
                seen = write.binding.metadata.generation
                conditions = list(write.conditions)
                status = {"conditions": conditions, "schedulerObservedGeneration": seen}
                self.merge(job, status=status)

    # ---- how things stand

    def state(self, name: Key) -> State | None:
        return self.folds[name].state if name in self.folds else None

    def where(self, job: str = "train") -> list[str]:
        return [one["name"] for one in self.bindings[job]["spec"].get("clusters") or ()]

    def held(self, job: str = "train") -> bool:
        return bool((self.bindings[job]["spec"].get("suspension") or {}).get("scheduling"))

    def said(self, job: str = "train") -> tuple[str, str]:
        found = self.bindings[job].get("status", {}).get("conditions") or ()
        mine = [one for one in found if one["type"] == "Scheduled"]
        return (mine[0]["reason"], mine[0]["message"]) if mine else ("", "")

    def runs(self, job: str = "train") -> Key:
        name = self.bind(job)
        self.settle()
        self.place(name)
        self.settle(5)
        self.stands(job, active=1)
        self.pods(name)
        self.settle()
        assert self.state(name) is State.RUNNING
        return name


def _report(cluster: str, uses: tuple[PodUse, ...]) -> Any:
    return msgspec.structs.replace(node(cluster), pods=uses)


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(new, Mapping):
        return new
    merged = dict(old) if isinstance(old, Mapping) else {}
    for name, value in new.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged
