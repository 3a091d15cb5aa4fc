"""Processes that come up late, or never."""

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from berthmaster.lib.nats.errors import ApiError, BusError, NoAnswer, NotConnected
from berthmaster.lib.runtime.backoff import Backoff
from berthmaster.lib.runtime.errors import EXIT_CANNOT_START, EXIT_SETTINGS
from berthmaster.lib.supervisor import processes
from berthmaster.lib.supervisor.faults import fault_text
from berthmaster.lib.supervisor.folder import FolderLock, FolderUnusable
from berthmaster.lib.supervisor.processes import (
    NO_LIMIT_S,
    LeftOut,
    NotReady,
    ServiceChild,
    SlowStart,
    Supervised,
    Supervisor,
)
from berthmaster.lib.supervisor.stack import until_answered
from tests.support.patience import hang_s

SOON = Backoff(first_s=0.05, most_s=0.1, jitter=0.0)


@dataclass
class Child:
    """Is ready once it is let, and ends with the code that it is given."""

    name: str
    let: asyncio.Event = field(default_factory=asyncio.Event)
    code: int | None = None
    log_path: Path = Path("/no/such/log")
    shown_url: str = ""
    pid: int = 7
    stop_last: bool = False
    our_exit_codes: bool = True
    cluster: str = ""
    starts: int = 0
    why: str = "reading its disk"
    fails_to_start: int = 0
    signals: list[signal.Signals] = field(default_factory=list)

    def start(self) -> None:
        self.starts += 1
        if self.starts > 1 and self.fails_to_start:
            self.fails_to_start -= 1
            raise OSError(28, "No space left on device")

    def ended(self) -> int | None:
        return self.code

    async def unready(self) -> str:
        return "" if self.let.is_set() else self.why

    async def wants_restart(self, why: str) -> bool:
        return why == "write error"

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if number in (signal.SIGTERM, signal.SIGKILL):
            self.code = -number


def test_a_slow_start_is_told_again_and_again_and_goes_on_until_it_is_ready() -> None:
    async def story() -> None:
        quick, slow = Child("gateway"), Child("resolver")
        quick.let.set()
        said: list[SlowStart] = []

        def told(late: SlowStart | LeftOut) -> None:
            assert isinstance(late, SlowStart)
            said.append(late)
            if len(said) == 2:  # somebody is patient enough: it comes up after all
                slow.let.set()

        supervisor = Supervisor(slow=told, patience=SOON)
        await supervisor.start([quick, slow], timeout_s=NO_LIMIT_S)
        assert [watched.condition for watched in supervisor.watched] == ["ready", "ready"]
        assert [late.behind for late in said] == [{"resolver": "reading its disk"}] * 2
        assert str(said[0]) == "not ready after 0 s: resolver (reading its disk)"
        await supervisor.stop()

    asyncio.run(story())


def test_programs_may_set_a_limit_and_are_told_who_was_behind() -> None:
    async def story() -> None:
        supervisor = Supervisor()
        with pytest.raises(NotReady, match=r"not ready after 0 s: resolver \(reading its disk\)"):
            await supervisor.start([Child("resolver")], timeout_s=0.1)
        await supervisor.stop()

    asyncio.run(story())


def test_what_can_never_be_is_given_up_at_once_whatever_the_limit() -> None:
    async def story() -> None:
        supervisor = Supervisor()
        hopeless = Child("emulator", code=EXIT_CANNOT_START)
        with pytest.raises(NotReady, match=r"emulator cannot start \(exit code 3\)"):
            await supervisor.start([hopeless], timeout_s=NO_LIMIT_S)
        assert hopeless.starts == 1
        await supervisor.stop()

    asyncio.run(story())


@pytest.mark.parametrize("code", [EXIT_SETTINGS, EXIT_CANNOT_START])
def test_exit_codes_of_somebody_elses_program_mean_nothing_and_it_is_started_again(
    code: int,
) -> None:
    async def story() -> None:
        server = Child("nats-server", our_exit_codes=False)
        server.let.set()
        supervisor = Supervisor(backoff=Backoff(first_s=0.01, most_s=0.02))
        await supervisor.start([server], timeout_s=5)
        server.code = code  # a Go panic ends it with 2
        async with asyncio.timeout(hang_s()):
            while server.starts < 2:
                await asyncio.sleep(0.01)
            server.code = None
            while supervisor.watched[0].condition != "ready":
                await asyncio.sleep(0.01)
        await supervisor.stop()

    asyncio.run(story())


def test_a_program_that_is_not_there_is_told_without_the_number_of_the_error(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        absent = ServiceChild(
            name="gateway", argv=["/no/such/program"], log_path=tmp_path / "log", http_port=1
        )
        supervisor = Supervisor()
        with pytest.raises(NotReady) as told:
            await supervisor.start([absent], timeout_s=NO_LIMIT_S)
        assert str(told.value) == "gateway cannot be started: No such file or directory"
        await supervisor.stop()

    asyncio.run(story())


def test_what_ends_by_chance_is_started_again_without_limit() -> None:
    async def story() -> None:
        shaky = Child("scorer", code=1)

        def told(late: SlowStart | LeftOut) -> None:
            assert "scorer (ended with exit code 1)" in str(late)
            shaky.code = None
            shaky.let.set()

        again = Backoff(first_s=0.01, most_s=0.02)
        supervisor = Supervisor(slow=told, patience=SOON, backoff=again)
        await supervisor.start([shaky], timeout_s=NO_LIMIT_S)
        assert shaky.starts > 1
        await supervisor.stop()

    asyncio.run(story())


def test_a_data_folder_that_is_a_file_is_told_in_words(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("a file")
    for folder in (file, file / "deeper"):
        with pytest.raises(FolderUnusable) as told, FolderLock(folder):
            pass
        assert fault_text(told.value) == (
            f"--data {folder} cannot be used as a folder: there is a file in its place"
        )


def test_an_error_of_the_system_is_told_without_its_number() -> None:
    assert fault_text(OSError(28, "No space left on device", "/data/x")) == (
        "/data/x: No space left on device"
    )
    assert fault_text(OSError(28, "No space left on device")) == "No space left on device"


def test_what_only_a_new_start_cures_is_ended_for_it_and_started_until_it_can_be() -> None:
    async def story() -> None:
        server = Child("nats-server", our_exit_codes=False)
        server.let.set()
        told: list[tuple[str, str]] = []

        def change(watched: Supervised) -> None:
            told.append((watched.condition, watched.note))
            if watched.note == "told to: write error":  # it has ended, and its disk fills up anew
                server.code, server.fails_to_start = None, 2
                server.let.set()

        supervisor = Supervisor(change, backoff=Backoff(first_s=0.01, most_s=0.02))
        await supervisor.start([server], timeout_s=5)
        told.clear()
        server.why = "write error"
        server.let.clear()
        async with asyncio.timeout(hang_s()):
            while ("ready", "") not in told:
                await asyncio.sleep(0.01)
        assert server.signals == [signal.SIGTERM]
        assert told == [
            ("unready", "write error"),
            ("restarting", "told to: write error"),
            ("starting", "cannot be started: No space left on device"),
            ("ready", ""),
        ]
        assert server.starts == 4
        await supervisor.stop()

    asyncio.run(story())


def test_streams_are_waited_for_as_long_as_the_server_gives_no_answer() -> None:
    async def story() -> None:
        answers: list[BusError | None] = [NotConnected("no NATS server"), NoAnswer("silence"), None]
        said: list[str] = []

        async def work() -> None:
            if (error := answers.pop(0)) is not None:
                raise error

        await until_answered(
            work, limit_s=NO_LIMIT_S, slow=lambda slow: said.append(str(slow)), patience=SOON
        )
        assert (answers, said) == ([], ["not ready after 0 s: nats-server (silence)"])

        # What the server will not do, it will not do later either; and programs may set a limit.
        for error in (ApiError(10047, "insufficient storage resources"), NoAnswer("silence")):
            answers[:] = [error]
            with pytest.raises(BusError, match=str(error).split(" (")[0]):
                await until_answered(work, limit_s=-1, slow=lambda slow: None)

    asyncio.run(story())


def test_a_start_goes_on_without_the_services_of_a_cluster_that_does_not_answer() -> None:
    async def story() -> None:
        gateway, near = Child("gateway"), Child("inventory-near", cluster="near")
        far = Child("inventory-far", cluster="far", why="no connection")
        gateway.let.set()
        near.let.set()
        said: list[SlowStart | LeftOut] = []
        supervisor = Supervisor(slow=said.append, cluster_s=0.2)
        await supervisor.start([gateway, near, far], timeout_s=NO_LIMIT_S)
        assert said == [LeftOut({"far": "inventory-far: no connection"})]
        assert str(said[0]) == "going on without far (inventory-far: no connection)"
        far.let.set()  # it is tried on, and comes
        async with asyncio.timeout(5):
            while supervisor.watched[2].condition != "ready":
                await asyncio.sleep(0.01)
        await supervisor.stop()

    asyncio.run(story())


def test_a_start_does_not_wait_for_clusters_that_are_known_to_be_away() -> None:
    async def story() -> None:
        gateway, far = Child("gateway"), Child("inventory-far", cluster="far")
        gateway.let.set()
        said: list[SlowStart | LeftOut] = []
        supervisor = Supervisor(slow=said.append, cluster_s=60.0)
        async with asyncio.timeout(5):
            await supervisor.start([gateway, far], timeout_s=NO_LIMIT_S, away={"far"})
        assert said == []  # whoever knew it has said it
        await supervisor.stop()

    asyncio.run(story())


def test_a_service_whose_kubeconfig_is_broken_ends_no_start_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "AGAIN", SOON)

    async def story() -> None:
        gateway = Child("gateway")
        gateway.let.set()
        broken = Child("executor-far", cluster="far", code=EXIT_CANNOT_START)
        supervisor = Supervisor(cluster_s=0.1)
        await supervisor.start([gateway, broken], timeout_s=NO_LIMIT_S)
        async with asyncio.timeout(5):
            while broken.starts < 3:
                await asyncio.sleep(0.01)
        broken.code = None
        broken.let.set()
        async with asyncio.timeout(5):
            while not supervisor.watched[1].was_ready:
                await asyncio.sleep(0.01)
        await supervisor.stop()

    asyncio.run(story())
