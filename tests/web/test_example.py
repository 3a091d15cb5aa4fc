"""docs/examples/watch.html: a page that subscribes to NATS by itself, as a watcher."""

from pathlib import Path

from playwright.sync_api import Browser, expect

from berthmaster.lib.runtime.ports import free_ports
from tests.pipeline.running import berth_up

PAGE = Path(__file__).parents[2] / "docs" / "examples" / "watch.html"


def test_the_example_shows_every_clusters_score_and_its_changes(
    browser: Browser, tmp_path: Path
) -> None:
    [port] = free_ports(1)
    flags = ("--websocket", str(port), "--clusters", "2", "--nodes", "4")
    with berth_up(tmp_path / "berth", *flags) as up:
        file = Path(up.json("keys", "sign", "watcher")["file"])
        assert up.berth("keys", "sign", "operator").returncode != 0  # those who only look
        context = browser.new_context()
        page = context.new_page()
        page.goto(PAGE.as_uri())
        page.get_by_label("URL").fill(f"ws://127.0.0.1:{port}")
        page.get_by_label("Credentials").set_input_files(file)
        page.get_by_role("button", name="Watch").click()
        expect(page.locator("#rows tr")).to_have_count(2)
        before = page.locator("#rows").inner_text()
        up.berth("submit", "--id", "j", "--gpus", "2", "--duration", "1h")
        expect(page.locator("#rows")).not_to_have_text(before)
        context.close()
