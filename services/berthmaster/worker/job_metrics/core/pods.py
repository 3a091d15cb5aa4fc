"""Pods that may have GPUs, by uid, name, annotated device and KAI group. Pure."""

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Owner(NamedTuple):
    kind: str
    name: str
    uid: str


class JobName(NamedTuple):
    """The job of a pod."""

    namespace: str
    job: Owner
    tenant: str = ""  # "" = an unmanaged job
    id: str = ""
    attempt: int = 0
    owner: Owner | None = None  # top owner, if another object

    @property
    def key(self) -> tuple[str, ...]:
        """Return a key, equal for all pods of a job, whatever owners are learned later."""
        if self.tenant:
            return self.tenant, self.id, str(self.attempt)
        return self.namespace, self.job.kind, self.job.name, self.job.uid


class Pod(NamedTuple):
    """A bound pod that has not ended."""

    uid: str
    namespace: str
    name: str
    node: str
    job: JobName
    devices: frozenset[str] = frozenset()  # annotated UUIDs, as by HAMi
    groups: tuple[str, ...] = ()  # KAI groups, whose keepers' GPUs it shares
    keeper: bool = False


class Book:
    def __init__(self) -> None:
        self._by_uid: dict[str, Pod] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._by_device: dict[str, set[str]] = {}
        self._by_group: dict[str, set[str]] = {}
        self._by_job: dict[tuple[str, ...], set[str]] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def put(self, pod: Pod) -> None:
        self.drop(pod.uid)
        self._by_uid[pod.uid] = pod
        self._by_name[pod.namespace, pod.name] = pod.uid
        self._by_job.setdefault(pod.job.key, set()).add(pod.uid)
        for device in pod.devices:
            self._by_device.setdefault(device, set()).add(pod.uid)
        for group in pod.groups:
            self._by_group.setdefault(group, set()).add(pod.uid)

    def drop(self, uid: str) -> None:
        pod = self._by_uid.pop(uid, None)
        if pod is None:
            return
        if self._by_name.get((pod.namespace, pod.name)) == uid:
            del self._by_name[pod.namespace, pod.name]
        _take(self._by_job, pod.job.key, uid)
        for device in pod.devices:
            _take(self._by_device, device, uid)
        for group in pod.groups:
            _take(self._by_group, group, uid)

    def get(self, uid: str) -> Pod | None:
        """By uid."""
        return self._by_uid.get(uid)

    def named(self, namespace: str, name: str) -> Pod | None:
        """By name."""
        uid = self._by_name.get((namespace, name))
        return self._by_uid.get(uid) if uid else None

    def written(self, device: str) -> Iterable[Pod]:
        """Return the pods annotated with this device."""
        return [self._by_uid[uid] for uid in sorted(self._by_device.get(device, ()))]

    def sharing(self, group: str) -> Iterable[Pod]:
        """Return the pods of a group without its keeper."""
        found = [self._by_uid[uid] for uid in sorted(self._by_group.get(group, ()))]
        return [pod for pod in found if not pod.keeper]

    def of_job(self, key: tuple[str, ...]) -> int:
        return len(self._by_job.get(key, ()))


def _take(index: dict[K, set[str]], key: K, uid: str) -> None:
    if (uids := index.get(key)) is not None:
        uids.discard(uid)
        if not uids:
            del index[key]
