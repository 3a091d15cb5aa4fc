"""docs/examples/watch.html: a page that subscribes to NATS by itself, as a watcher."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from berthmaster.bus.keys import creds_file, make_keys
from berthmaster.runtime.ports import free_ports
from tests.pipeline.running import berth_up

PAGE = Path(__file__).parents[2] / "docs" / "examples" / "watch.html"


@pytest.mark.timeout(180)
def test_the_example_shows_every_clusters_score_and_its_changes(
    browser: Browser, tmp_path: Path
) -> None:
    [port] = free_ports(1)
    keys = tmp_path / "berth" / "keys"
    make_keys(keys, ["watcher"])
    flags = ("--websocket", str(port), "--clusters", "2", "--nodes", "4")
    with berth_up(tmp_path / "berth", *flags) as up:
        context = browser.new_context()
        page = context.new_page()
        page.goto(PAGE.as_uri())
        page.get_by_label("URL").fill(f"ws://127.0.0.1:{port}")
        page.get_by_label("Credentials").set_input_files(creds_file(keys, "watcher"))
        page.get_by_role("button").click()
        expect(page.locator("#rows tr")).to_have_count(2, timeout=20_000)
        before = page.locator("#rows").inner_text()
        up.berth("submit", "--id", "j", "--gpus", "2", "--duration", "1h")
        expect(page.locator("#rows")).not_to_have_text(before, timeout=20_000)
        context.close()
