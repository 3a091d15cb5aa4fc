"""A browser, and a pipeline with its page; without a browser the tier is skipped, with why."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright

from tests.pipeline.running import Up, berth_up
from tests.support.patience import HANG_S

expect.set_options(timeout=1000 * HANG_S)

FLAGS = ("--nodes", "64", "--speed", "10")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if why := os.environ.get("BERTH_CHROMIUM_MISSING"):
        pytest.skip(why)
    program = os.environ.get("BERTH_CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium on PATH; run scripts/chromium.sh COMMAND as root")
    with sync_playwright() as driver:
        # As root Chromium runs only without its own sandbox; what it shows here is ours.
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp("web")
    with berth_up(folder / "berth", *FLAGS) as up:
        yield up


@pytest.fixture
def page(browser: Browser, up: Up) -> Iterator[Page]:
    """A page that has complained of nothing when the test ends."""
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # A dashboard that is being restarted cannot be reached: the browser says so.
        if message.type == "error" and "net::ERR_" not in message.text:
            complaints.append(message.text)

    def failed(error: Error) -> None:
        complaints.append(str(error))

    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.on("console", heard)
    page.on("pageerror", failed)
    page.set_default_timeout(1000 * HANG_S)
    page.goto(up.view["page"])
    page.wait_for_selector("#live[data-state=live]")
    yield page
    context.close()
    assert complaints == []
