"""The agent scraping a dcgm-exporter over HTTP, when all is well and when it is not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from berthmaster.worker.telemetry.core.source import SourceFailed
from berthmaster.worker.telemetry.dcgm import DcgmSource, MetricsPage
from tests.pipeline.telemetry.tools import Agent, Exporter, Listener, exporter
from tests.support.exposition import A100, labels, page, uuid
from tests.support.patience import wait_until

EIGHT = page(*((labels(gpu), A100) for gpu in range(8)))


@pytest.fixture
def one() -> Iterator[Exporter]:
    with exporter() as running:
        running.body = EIGHT
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "nats", ServerConfig(sync="default")) as running:
        yield running


def test_an_exporter_is_scraped_and_published_for_the_node_that_was_named(
    one: Exporter, server: Server
) -> None:
    flags = ("--nats-url", server.url, "--dcgm-url", one.url, "--interval-s", "0.1")
    with Listener(server.url) as listener, Agent("--source", "dcgm", *flags) as agent:
        heard = listener.wait(5)
        assert agent.stop() == 0
    assert [message.counter for message in heard] == [1, 2, 3, 4, 5]
    assert heard[0].source == "dcgm"
    assert [(gpu.index, gpu.uuid) for gpu in heard[0].gpus] == [(n, uuid(n)) for n in range(8)]
    assert one.connections == 1
    assert one.requests >= 5


def test_each_host_of_an_exporter_is_a_node_where_none_was_named(
    one: Exporter, server: Server
) -> None:
    one.body = page((labels(host="gpu-a"), A100), (labels(host="gpu-b"), A100))
    flags = ("--nats-url", server.url, "--dcgm-url", one.url, "--interval-s", "0.1")
    with Listener(server.url) as listener, Agent("--source", "dcgm", "--node", "", *flags) as agent:
        first, second = listener.wait(1, "gpu-a")[0], listener.wait(1, "gpu-b")[0]
        assert agent.stop() == 0
    assert (first.gpus, first.counter) == (second.gpus, second.counter)


def test_an_exporter_that_is_away_is_told_once_silences_the_node_and_is_found_again(
    one: Exporter, server: Server
) -> None:
    flags = ("--nats-url", server.url, "--dcgm-url", one.url, "--interval-s", "0.1")
    with Listener(server.url) as listener, Agent("--source", "dcgm", *flags) as agent:
        listener.wait(2)
        one.stop()
        one.status = 503  # for the connection that is still open
        agent.until("source_unreadable")
        assert agent.source_is(False, one.url)
        before = len(listener.messages())
        failed = agent.figure("reads_failed_total")
        wait_until(lambda: agent.figure("reads_failed_total") > failed + 3, "it goes on trying")
        assert len(listener.messages()) == before

        one.status = 200
        one.start()
        agent.until("source_readable")
        listener.wait(before + 2)
        assert len(agent.events("source_unreadable")) == 1
        assert agent.stop() == 0


def test_auto_takes_the_exporter_where_there_is_no_driver(one: Exporter, server: Server) -> None:
    flags = ("--nats-url", server.url, "--dcgm-url", one.url, "--interval-s", "0.1")
    with Listener(server.url) as listener, Agent(*flags) as agent:
        chosen = agent.until("source_opened")["source"]
        if chosen == "nvml":
            pytest.skip("this machine has an NVIDIA driver")
        assert listener.wait(1)[0].source == "dcgm"
        assert agent.stop() == 0


# The page itself


def read(one: Exporter, timeout_s: float = 5.0, max_bytes: int = 1_000_000) -> bytes:
    fetching = MetricsPage(one.url, timeout_s, max_bytes)
    try:
        return fetching.fetch()
    finally:
        fetching.close()


def test_a_page_is_fetched_whole(one: Exporter) -> None:
    one.body = EIGHT * 20
    assert read(one) == one.body


def test_one_connection_serves_many_fetches_and_one_that_was_closed_is_made_anew(
    one: Exporter,
) -> None:
    fetching = MetricsPage(one.url, 5.0, 1_000_000)
    assert [fetching.fetch() == EIGHT for _ in range(3)] == [True, True, True]
    assert one.connections == 1
    one.hang_up = True
    assert [fetching.fetch() == EIGHT for _ in range(3)] == [True, True, True]
    assert one.connections == 3
    fetching.close()


def test_a_page_that_is_too_large_is_given_up(one: Exporter) -> None:
    with pytest.raises(SourceFailed, match="the page is larger than 1000 bytes"):
        read(one, max_bytes=1000)


def test_a_page_that_drips_is_given_up_within_the_time_for_all_of_it(one: Exporter) -> None:
    one.drip_s = 0.05
    with pytest.raises(SourceFailed, match=r"no page within 0.3 s"):
        read(one, timeout_s=0.3)  # its bytes alone take minutes


def test_a_page_that_breaks_off_is_no_page(one: Exporter) -> None:
    one.cut_short = 100
    with pytest.raises(SourceFailed, match="IncompleteRead"):
        read(one)


def test_a_page_with_another_status_is_no_page(one: Exporter) -> None:
    one.status = 401
    with pytest.raises(SourceFailed, match="answers 401 Unauthorized"):
        read(one)


def test_a_host_that_does_not_exist_is_told_by_its_url() -> None:
    with pytest.raises(SourceFailed, match=r"^http://127.0.0.1:9/metrics: .*refused"):
        MetricsPage("http://127.0.0.1:9/metrics", 1.0, 1000).fetch()


def test_an_unchanged_page_gives_the_same_readings_and_a_changed_one_new_ones(
    one: Exporter,
) -> None:
    source = DcgmSource(url=one.url, node="n1", timeout_s=5.0)
    first = source.read(0.0)
    again = source.read(1.0)
    assert again == first
    assert source.read(1.5) is again
    one.body = page((labels(), A100 | {"DCGM_FI_DEV_GPU_TEMP": 77}))
    ((_, gpus, *_),) = source.read(2.0)
    assert gpus[0].temperature_c == 77
    assert [gpu.health for gpu in gpus[1:]] == ["lost"] * 7
    source.close()


def test_an_error_in_the_page_names_the_page(one: Exporter) -> None:
    one.body = b"node_load1 0.5\n"
    source = DcgmSource(url=one.url, node="n1", timeout_s=5.0)
    with pytest.raises(SourceFailed, match=rf"^{one.url}: no DCGM_FI_DEV_… series"):
        source.read(0.0)
    source.close()
