"""The reflector against real API servers, and what they do on bad days."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import from_kubeconfig
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.reflector import (
    Added,
    Change,
    Deleted,
    Listed,
    Reflector,
    Unreadable,
    Updated,
)
from berthmaster.lib.kube.resources import CONFIG_MAPS, Resource
from tests.support.patience import hang_s, until
from tests.unit.lib.kube.stage import Lines

GADGETS = Resource("berth.test", "v1", "gadgets", "Gadget")


class Note(Object, frozen=True):
    """A ConfigMap."""

    data: dict[str, str] = msgspec.field(default_factory=dict)


class Mirrored:
    """A reflector at work, and everything it told."""

    def __init__(self, client: Client, resource: Resource, **options: Any) -> None:
        self.told: list[str] = []
        self.log = Lines()
        self.twin: dict[str, Object] = {}
        self.stopping = asyncio.Event()
        kind = Note if resource is CONFIG_MAPS else Object
        self.reflector: Reflector[Any] = Reflector(
            client, resource, kind, on_change=self.hear, log=self.log, absent_s=0.5, **options
        )

    def hear(self, change: Change[Any]) -> None:
        """Keep it, and keep a twin of the mirror by nothing but changes."""
        match change:
            case Added(found):
                assert found.metadata.name not in self.twin
                self.twin[found.metadata.name] = found
                self.told.append(f"+{found.metadata.name}")
            case Updated(found, previous):
                assert self.twin[found.metadata.name] is previous
                self.twin[found.metadata.name] = found
                self.told.append(f"~{found.metadata.name}")
            case Deleted(_, previous):
                assert self.twin.pop(previous.metadata.name) is previous
                self.told.append(f"-{previous.metadata.name}")
            case Listed(_):
                self.told.append("listed")
            case Unreadable(bad, _):
                self.told.append(f"?{bad.name}")

    def names(self) -> list[str]:
        """What is mirrored, but for what every namespace has."""
        found = sorted(name for _, name in self.reflector.objects)
        assert found == sorted(self.twin)
        return [name for name in found if name != "kube-root-ca.crt"]

    def versions(self) -> dict[str, str]:
        """Each object's resource version, as mirrored."""
        return {
            name: found.metadata.resource_version
            for (_, name), found in self.reflector.objects.items()
        }


@asynccontextmanager
async def mirrored(kubeconfig: Path, resource: Resource, **options: Any) -> AsyncIterator[Mirrored]:
    access = await from_kubeconfig(kubeconfig)
    async with await Client.open(access, user_agent="berth-tests", log=Lines()) as client:
        found = Mirrored(client, resource, **options)
        task = asyncio.create_task(found.reflector.run(found.stopping))
        try:
            yield found
        finally:
            found.stopping.set()
            async with asyncio.timeout(hang_s()):
                await task


def note(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def test_everything_is_listed_in_pages_and_each_change_is_heard_at_once(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    path = CONFIG_MAPS.path(namespace=namespace)
    for number in range(25):
        api.create(path, note(f"n{number:02}"))

    async def story() -> None:
        async with mirrored(
            planes.hub.kubeconfig, CONFIG_MAPS, namespace=namespace, page=10
        ) as found:
            await until(lambda: found.reflector.watches)
            assert found.names() == [f"n{number:02}" for number in range(25)]
            client_calls = found.reflector._requests.client.calls  # how many pages it took
            assert client_calls["list", "configmaps"] == 3
            await asyncio.to_thread(api.merge, f"{path}/n03", {"data": {"x": "1"}})
            await asyncio.to_thread(api.delete, f"{path}/n07")
            await asyncio.to_thread(api.create, path, note("late"))
            await until(lambda: len(found.told) == 30)
            assert found.told[27:] == ["~n03", "-n07", "+late"]
            assert found.reflector.objects[namespace, "n03"].data == {"x": "1"}
            assert (found.reflector.lists, found.log.lines) == (1, [])

    asyncio.run(story())


def test_selectors_narrow_what_is_mirrored_and_who_leaves_them_is_told_as_deleted(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    path = CONFIG_MAPS.path(namespace=namespace)
    for name in ("a", "b"):
        labelled = note(name)
        labelled["metadata"]["labels"] = {"tier": "gold"}
        api.create(path, labelled)
    api.create(path, note("plain"))

    async def story() -> None:
        async with mirrored(
            planes.hub.kubeconfig,
            CONFIG_MAPS,
            namespace=namespace,
            label_selector="tier in (gold)",
        ) as found:
            await until(lambda: found.reflector.watches)
            assert found.names() == ["a", "b"]
            await asyncio.to_thread(api.merge, f"{path}/a", {"metadata": {"labels": None}})
            await until(lambda: found.names() == ["b"])
            assert found.told[-1] == "-a"

    asyncio.run(story())


def test_bookmarks_keep_the_mirror_young_while_nothing_of_its_own_changes(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    path = CONFIG_MAPS.path(namespace=namespace)

    async def story() -> None:
        # The server sends one shortly before it ends a watch, at the latest.
        async with mirrored(
            planes.hub.kubeconfig, CONFIG_MAPS, namespace=namespace, watch_s=6
        ) as found:
            await until(lambda: found.reflector.watches)
            first = found.reflector.resource_version
            heard_at_s = found.reflector.last_seen_s
            await asyncio.to_thread(
                api.create, CONFIG_MAPS.path(namespace="default"), note(namespace)
            )
            await until(lambda: found.reflector.resource_version != first)
            assert int(found.reflector.resource_version) > int(first)
            assert found.reflector.last_seen_s > heard_at_s
            await until(lambda: found.reflector.watches >= 3)
            await asyncio.to_thread(api.create, path, note("after"))
            await until(lambda: found.names() == ["after"])
            assert found.reflector.lists == 1
            assert found.log.lines == []

    asyncio.run(story())
    api.delete(CONFIG_MAPS.path(namespace="default", name=namespace))


def test_forgotten_history_is_listed_anew_and_nothing_is_missed(
    planes: Planes, namespace: str
) -> None:
    worker = planes.workers[0]
    path = CONFIG_MAPS.path(namespace=namespace)
    for name in ("stays", "goes"):
        worker.api.create(path, note(name))
    door = worker.proxy()
    kubeconfig = worker.kubeconfig_for("admin", ["system:masters"], via=door)

    async def story() -> None:
        async with mirrored(kubeconfig, CONFIG_MAPS, namespace=namespace) as found:
            await until(lambda: found.reflector.watches)
            await asyncio.to_thread(door.close)
            await asyncio.to_thread(worker.api.delete, f"{path}/goes")
            await asyncio.to_thread(worker.api.create, path, note("comes"))
            await asyncio.to_thread(worker.forget_history)
            await asyncio.to_thread(door.open)
            await until(lambda: found.told.count("listed") == 2)
            # What vanished unseen is told, before the list is called complete.
            assert found.told[4:] == ["+comes", "-goes", "listed"]
            assert found.names() == ["comes", "stays"]
            await asyncio.to_thread(worker.api.merge, f"{path}/stays", {"data": {"x": "1"}})
            await until(lambda: found.told[-1] == "~stays")

    asyncio.run(story())


def test_a_crash_of_the_api_server_loses_nothing_and_is_over_soon_after_it_is_back(
    planes: Planes, namespace: str
) -> None:
    worker = planes.workers[0]
    path = CONFIG_MAPS.path(namespace=namespace)
    worker.api.create(path, note("a", x="0"))

    async def story() -> None:
        async with mirrored(worker.kubeconfig, CONFIG_MAPS, namespace=namespace) as found:
            await until(lambda: found.reflector.watches)
            for crash in range(2):
                await asyncio.to_thread(worker.crash_api_server)
                await until(lambda: found.reflector.faults.reason)
                assert found.names() == ["a"]  # what is known stays known
                await asyncio.to_thread(worker.start_api_server)
                await asyncio.to_thread(worker.api.merge, f"{path}/a", {"data": {"x": f"{crash}!"}})
                await until(
                    lambda crash=crash: (  # type: ignore[misc]
                        found.reflector.objects[namespace, "a"].data == {"x": f"{crash}!"}
                    )
                )
                assert found.reflector.faults.reason == ""

    asyncio.run(story())


def test_a_network_that_swallows_everything_is_noticed_and_survived(
    planes: Planes, namespace: str
) -> None:
    worker = planes.workers[0]
    path = CONFIG_MAPS.path(namespace=namespace)
    door = worker.proxy()
    kubeconfig = worker.kubeconfig_for("admin", ["system:masters"], via=door)

    async def story() -> None:
        async with mirrored(kubeconfig, CONFIG_MAPS, namespace=namespace, silent_s=2) as found:
            await until(lambda: found.reflector.watches)
            await asyncio.to_thread(door.go_deaf)
            await asyncio.to_thread(worker.api.create, path, note("unheard"))
            await until(lambda: found.reflector.faults.reason)
            loop = asyncio.get_running_loop()
            assert found.reflector.age_s(loop.time()) > 1
            assert found.names() == []
            await asyncio.to_thread(door.open)
            await until(lambda: found.names() == ["unheard"])
            await until(lambda: found.reflector.age_s(loop.time()) < 1)

    asyncio.run(story())


def test_a_right_that_is_taken_away_and_given_back_is_told_and_survived(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    group = "rbac.authorization.k8s.io"
    rbac = f"/apis/{group}/v1/namespaces/{namespace}"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}
    api.create(f"{rbac}/roles", {"metadata": {"name": "looker"}, "rules": [rule]})
    subject = {"kind": "User", "name": "looker", "apiGroup": group}
    role = {"apiGroup": group, "kind": "Role", "name": "looker"}
    binding = {"metadata": {"name": "looker"}, "roleRef": role, "subjects": [subject]}

    async def story() -> None:
        async with mirrored(
            planes.hub.kubeconfig_for("looker"), CONFIG_MAPS, namespace=namespace
        ) as found:
            await until(lambda: found.log.lines)
            why = found.reflector.faults.reason
            assert why.startswith('not allowed: configmaps is forbidden: User "looker" cannot list')
            await asyncio.to_thread(api.create, f"{rbac}/rolebindings", binding)
            await until(lambda: found.reflector.caught_up)
            assert found.reflector.faults.reason == ""
            assert found.log.events() == ["mirroring failed", "mirroring resumed"]

    asyncio.run(story())


def test_a_kind_that_is_installed_removed_and_installed_again_is_followed(
    planes: Planes, namespace: str
) -> None:
    api = planes.hub.api
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{GADGETS.plural}.{GADGETS.group}"},
        "spec": {
            "group": GADGETS.group,
            "scope": "Namespaced",
            "names": {"plural": GADGETS.plural, "kind": GADGETS.kind},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        },
    }
    gadget = {"apiVersion": "berth.test/v1", "kind": "Gadget", "metadata": {"name": "g"}}
    path = GADGETS.path(namespace=namespace)
    crd = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{GADGETS.plural}.berth.test"

    async def story() -> None:
        async with mirrored(planes.hub.kubeconfig, GADGETS) as found:
            await until(lambda: found.log.lines)
            assert found.reflector.faults.reason == "gadgets of berth.test/v1 are not served here"
            for _ in range(2):
                await asyncio.to_thread(planes.hub.apply, [definition])
                await asyncio.to_thread(api.create, path, gadget)
                await until(lambda: found.names() == ["g"])
                assert found.reflector.faults.reason == ""
                await asyncio.to_thread(api.delete, crd)
                await until(lambda: "not served" in found.reflector.faults.reason)
                # Kubernetes deletes the objects of a kind before the kind; we hear of it.
                await until(lambda: found.names() == [])

    asyncio.run(story())


def test_a_storm_of_changes_ends_with_the_mirror_equal_to_the_server(
    planes: Planes, namespace: str
) -> None:
    worker = planes.workers[0]
    path = CONFIG_MAPS.path(namespace=namespace)
    door = worker.proxy()
    kubeconfig = worker.kubeconfig_for("admin", ["system:masters"], via=door)

    def there() -> dict[str, str]:
        return {
            item["metadata"]["name"]: item["metadata"]["resourceVersion"]
            for item in worker.api.items(path)
        }

    def storm(part: int) -> None:
        api = worker.api_for("admin", ["system:masters"])
        for step in range(30):
            name = f"n{part}-{step % 5}"
            there = api.find(f"{path}/{name}") is not None
            if not there:
                api.create(path, note(name, step=str(step)))
            elif step % 3 == part % 3:
                api.delete(f"{path}/{name}")
            else:
                api.merge(f"{path}/{name}", {"data": {"step": str(step)}})
            if step % 10 == part:
                door.cut()

    async def story() -> None:
        async with mirrored(kubeconfig, CONFIG_MAPS, namespace=namespace) as found:
            await until(lambda: found.reflector.watches)
            for _ in range(3):
                watches = found.reflector.watches
                await asyncio.gather(*(asyncio.to_thread(storm, part) for part in range(4)))
                async with asyncio.timeout(hang_s()):
                    while found.versions() != await asyncio.to_thread(there):
                        await asyncio.sleep(0.1)
                found.names()  # a twin that was kept by its changes alone has the same
                # It was cut off in between.
                await until(lambda before=watches: found.reflector.watches > before)  # type: ignore[misc]

    asyncio.run(story())
