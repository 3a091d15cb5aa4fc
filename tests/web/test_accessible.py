"""Whoever sees little can read every view, in both themes, as far as axe-core can judge."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.pipeline.running import Up
from tests.web import axe

# A view, and something that stands there once it is drawn.
VIEWS = {
    "fleet": "canvas.grid",
    "cluster/t4": "canvas.grid",
    "jobs": "table",
    "job/default/axe": "h1",
    "queues": "table",
    "try": "textarea",
    "reports": "h1, h2",
    "problems": "h1, h2",
}


@pytest.fixture(scope="module")
def checked(browser: Browser, up: Up) -> Iterator[Page]:
    up.berth("submit", "--id", "axe", "--gpus", "1", "--model", "H100")
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.goto(up.view["page"])
    page.wait_for_selector("#live[data-state=live]")
    page.evaluate(axe.source())  # by the debugger: the page's policy lets no other script in
    yield page
    context.close()


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(checked: Page, view: str) -> None:
    checked.evaluate("view => { location.hash = `#/${view}`; }", view)
    checked.wait_for_selector(f"main :is({VIEWS[view]})")
    found = []
    for theme in ("dark", "light"):
        checked.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        found += [f"{theme}: {each}" for each in axe.serious(checked)]
    assert found == []
