"""The last reported state of Karmada's objects, the log and the nodes. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from berthmaster.hub.karmada.core.candidates import why_not
from berthmaster.hub.karmada.core.objects import KarmadaCluster, Policy, ResourceBinding
from berthmaster.hub.karmada.core.requests import Read, is_ours, name_of, read_request
from berthmaster.hub.karmada.core.steps import Seen, View
from berthmaster.lib.kube.objects import Object, key_of
from berthmaster.lib.kube.selector import SelectorError
from berthmaster.lib.lifecycle.fold import Endings, OpenWorkloads, Verdict
from berthmaster.lib.lifecycle.states import LIVE, Ending
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.control import ControlFact, QueueSetting
from berthmaster.lib.messages.fleet import FleetFact, NodeGone, NodeReport, PodUse
from berthmaster.lib.messages.workload import Carried, Submitted, WorkloadEvent

ObjectKey = tuple[str, str]
_Node = tuple[str, str]  # cluster, node


class Known:
    """All inputs of the steps."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self.id = ""  # id of the Karmada control plane; "" = not known yet
        self.sequence = 0
        self.workloads = OpenWorkloads(self._begins)
        self.open = self.workloads.open
        self.ended = Endings()
        self.frozen = self.workloads.frozen
        self.bindings: dict[ObjectKey, ResourceBinding] = {}
        self.names: dict[Key, ObjectKey] = {}
        self.queues: dict[str, QueueSetting] = {}
        self._tenants = tenants
        self._members: dict[str, KarmadaCluster] = {}
        self._policies: dict[ObjectKey, Policy] = {}
        self._nodes: dict[_Node, dict[Key, list[PodUse]]] = {}
        self._pods: dict[Key, dict[_Node, list[PodUse]]] = {}

    # The log

    def take_event(
        self, event: WorkloadEvent, sequence: int, stored_at_s: float, *, void: bool = False
    ) -> Verdict | None:
        """Fold one event. None = another control plane's, or of a frozen workload."""
        self.sequence = max(self.sequence, sequence)
        applied = self.workloads.apply(event, sequence, stored_at_s, void=void)
        if applied is None:
            return None
        if isinstance(event, Ending) and applied.verdict is Verdict.COUNTED:
            self.ended.remember(event)  # a tombstone too keeps its id in use
        is_tombstone = applied.is_new and isinstance(event, Ending)
        return None if is_tombstone else applied.verdict

    def _begins(self, event: Submitted | Carried) -> bool:
        """Return whether the event begins a workload of a Karmada binding, by its origin."""
        origin = event.origin if isinstance(event, Submitted) else event.workload.origin
        return origin is not None and origin.system == "karmada"

    def is_mine(self, workload: Workload) -> bool:
        """Return whether the workload's binding belongs to this control plane."""
        return workload.origin is not None and workload.origin.hub == self.id

    # Facts

    def take_fact(self, fact: FleetFact) -> list[Key]:
        """Apply a node's report, and return the workloads with pods there now or before."""
        if isinstance(fact, NodeGone):
            return self.drop_node(fact.cluster, fact.node)
        if not isinstance(fact, NodeReport):
            return []
        node = (fact.cluster, fact.node)
        before = self.drop_node(*node)
        here: dict[Key, list[PodUse]] = {}
        for use in fact.pods:
            here.setdefault(key(use.tenant, use.workload), []).append(use)
        if here:
            self._nodes[node] = here
        for name, uses in here.items():
            self._pods.setdefault(name, {})[node] = uses
        return [*before, *here]

    def drop_node(self, cluster: str, node: str) -> list[Key]:
        """Drop a deleted node, and return the workloads with pods there."""
        had = list(self._nodes.pop((cluster, node), ()))
        for name in had:
            if (places := self._pods.get(name)) is not None:
                places.pop((cluster, node), None)
                if not places:
                    del self._pods[name]
        return had

    def take_control(self, fact: ControlFact) -> None:
        """Apply an operator's setting."""
        if isinstance(fact, QueueSetting):
            self.queues[fact.queue] = fact

    # Karmada's objects

    def put(self, thing: Object, *, gone: bool) -> Iterable[Key]:
        """Apply an object's current or last state, and return the affected workloads."""
        at = key_of(thing.metadata)
        match thing:
            case ResourceBinding():
                return self._put_binding(at, thing, gone)
            case KarmadaCluster():
                _put(self._members, thing.metadata.name, thing, gone)
            case Policy():
                _put(self._policies, at, thing, gone)
        return list(self.names)

    def _put_binding(self, at: ObjectKey, binding: ResourceBinding, gone: bool) -> list[Key]:
        name = key(*name_of(binding, self._tenants))
        before = self.bindings.get(at)
        touched = [name]
        if before is not None and before.metadata.uid != binding.metadata.uid:
            older = key(*name_of(before, self._tenants))
            self.names.pop(older, None)
            touched.append(older)
        if gone or not (is_ours(binding) or name in self.open):
            self.bindings.pop(at, None)
            self.names.pop(name, None)
        else:
            self.bindings[at] = binding
            self.names[name] = at
        return touched

    # Derived state

    def read(self, binding: ResourceBinding) -> Read:
        namespace, name = binding.policy
        policy = self._policies.get((namespace, name))
        told = policy.metadata.labels if policy is not None else {}
        return read_request(binding, told, self._members.values(), self.queues, self._tenants)

    def view(self, name: Key, empty_since_s: float | None, labelled_s: float | None) -> View:
        work = self.open.get(name)
        at = self.names.get(name)
        binding = self.bindings.get(at) if at is not None else None
        ended = self.ended.get(name)
        read = self.read(binding) if binding is not None and ended is None else None
        kept = self._kept_away(binding, work)
        return View(binding, read, work, ended, self.pods(work), empty_since_s, labelled_s, kept)

    def _kept_away(self, binding: ResourceBinding | None, work: Workload | None) -> str:
        if binding is None or work is None or work.state not in LIVE:
            return ""
        if binding.attempt == str(work.attempt):
            return ""  # after the release, Karmada decides
        try:
            return why_not(work.cluster, binding.spec.placement, self._members.values())
        except (SelectorError, msgspec.ValidationError) as error:
            # the present placement is invalid; the submitted one was valid
            return f"placement: {error}"

    def pods(self, work: Workload | None) -> list[Seen]:
        """Return the pods of the attempt, as nodes report them."""
        if work is None or work.state not in LIVE:
            return []
        return [
            Seen(node, use)
            for (cluster, node), uses in sorted(self._pods.get(work.key, {}).items())
            for use in sorted(uses, key=lambda use: use.pod)
            if cluster == work.cluster and use.attempt == work.attempt
        ]

    def is_empty(self, name: Key) -> bool:
        """Return whether neither Karmada nor any node has a trace of the attempt."""
        work, at = self.open.get(name), self.names.get(name)
        binding = self.bindings.get(at) if at is not None else None
        if work is None or self.pods(work):
            return False
        return binding is None or not (binding.where or binding.items)


def _put(into: dict, at: object, thing: object, gone: bool) -> None:  # type: ignore[type-arg]
    if gone:
        into.pop(at, None)
    else:
        into[at] = thing
