"""The page in a browser, against a pipeline that runs."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from berthmaster.client import Client
from berthmaster.lib.access.keys import creds_file
from berthmaster.lib.access.permissions import inbox_prefix
from tests.pipeline.running import Up
from tests.support.patience import hang_s, wait_until

ROW = """async ([cluster, node, gpu]) => {
  const store = await import('/js/store.js');
  const grid = store.grids.get(cluster), found = grid.nodes.find((each) => each.name === node);
  return grid.rows[(found.first + gpu) * store.COLUMNS];
}"""
DRAWN = """async ([cluster, node, gpu]) => {
  const store = await import('/js/store.js'), colors = await import('/js/colors.js');
  const grid = store.grids.get(cluster), found = grid.nodes.find((each) => each.name === node);
  const canvas = document.querySelector(`[data-cluster="${cluster}"] canvas`);
  const wanted = colors.color(grid.rows, (found.first + gpu) * store.COLUMNS, 'busy');
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < data.length; at += 4)
    if (`rgb(${data[at]},${data[at + 1]},${data[at + 2]})` === wanted) return true;
  return false;
}"""


def show(page: Page, where: str) -> None:
    page.evaluate("where => { location.hash = where; }", where)


def next_reading(up: Up, cluster: str) -> tuple[str, int, float]:
    """In a thread: the browser's driver has a loop in this one."""
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, _next_reading(up, cluster)).result()


async def _next_reading(up: Up, cluster: str) -> tuple[str, int, float]:
    """A GPU that is busy, as its node has just said."""
    client = Client.connect(
        up.view["url"],
        creds_file=creds_file(up.folder / "keys", "operator"),
        inbox_prefix=inbox_prefix("operator"),
    )
    async with client as berth, asyncio.timeout(hang_s()):
        async for reading in berth.telemetry(cluster):
            for gpu in reading.gpus:
                if gpu.utilization_percent:
                    return reading.node, gpu.index, gpu.utilization_percent
    raise AssertionError("no reading")


def test_the_grid_follows_telemetry(page: Page, up: Up) -> None:
    up.berth("submit", "--id", "busy", "--gpus", "8", "--model", "G2", "--duration", "1h")
    cluster = up.until("busy", state="running")["cluster"]
    node, gpu, busy = next_reading(up, cluster)
    for _ in range(5):
        wait_until(
            lambda: page.evaluate(ROW, [cluster, node, gpu]) == round(busy),  # noqa: B023
            f"{busy} % of GPU {gpu} of {node}",
        )
        node, gpu, busy = next_reading(up, cluster)
    page.wait_for_function(DRAWN, arg=[cluster, node, gpu])
    assert up.berth("cancel", "busy").returncode == 0


def test_a_submitted_job_appears_runs_and_ends(page: Page, up: Up) -> None:
    show(page, "#/jobs?q=shown-1")
    expect(page.get_by_text("No jobs match.")).to_be_visible()
    up.berth("submit", "--id", "shown-1", "--gpus", "1", "--duration", "40s")
    row = page.locator("tr", has_text="shown-1")
    expect(row.locator(".chip.running")).to_be_visible()
    row.get_by_role("link", name="shown-1").click()
    expect(page.locator(".timeline")).to_contain_text("running")
    expect(page.locator(".crumbs .chip.succeeded, .crumbs .chip.failed")).to_be_visible()
    expect(page.locator(".timeline li").first).to_contain_text("by executor/")


def test_why_on_the_page_is_what_berth_why_says(page: Page, up: Up) -> None:
    up.berth("submit", "--id", "no-such", "--gpus", "1", "--model", "H100")
    said = up.json("why", "no-such")
    show(page, "#/job/default/no-such")
    expect(page.locator("#why-summary")).to_have_text(said["summary"])
    for hint in said["hints"]:
        expect(page.get_by_text(hint, exact=True)).to_be_visible()
    out = page.locator("section[aria-label=Why] table tbody tr")
    shown = {
        cells[1]: cells[0] for cells in (row.locator("td").all_inner_texts() for row in out.all())
    }
    by_reason: dict[str, list[str]] = {}
    for cluster, reason in said["filtered"].items():
        by_reason.setdefault(reason, []).append(cluster)
    assert shown == {reason: ", ".join(sorted(names)) for reason, names in by_reason.items()}

    # The same where a place was found: the ranking, best first, with its scores.
    up.berth("submit", "--id", "placed-1", "--gpus", "1", "--duration", "1h")
    up.until("placed-1", state="running")
    choice = up.json("why", "placed-1")["choice"]
    show(page, "#/job/default/placed-1")
    expect(page.locator(".crumbs h1")).to_have_text("placed-1")  # the other job's page is gone
    ranked = page.locator("section[aria-label=Why] table").first.locator("tbody tr")
    expect(ranked.first).to_contain_text(choice["cluster"])
    shown_rows = [row.locator("td").all_inner_texts()[1:3] for row in ranked.all()]
    assert shown_rows == [[one["cluster"], f"{one['score']:.1f}"] for one in choice["ranking"]]
    up.berth("cancel", "placed-1")


def test_what_people_write_is_text(page: Page, up: Up) -> None:
    evil = "<img src=x onerror='document.title=\"taken\"'><script>document.title='taken'</script>"
    up.berth(
        "submit", "--id", "evil", "--gpus", "1", "--model", "H100", "--label", f"note={evil[:200]}"
    )
    up.berth("cancel", "evil", "--reason", evil)
    up.berth("cordon", "p100", "--reason", evil)
    show(page, "#/job/default/evil")
    expect(page.locator(".timeline")).to_contain_text("<img src=x")
    show(page, "#/problems")
    expect(page.locator("main .problems")).to_contain_text("<script>")
    show(page, "#/jobs?q=evil")
    expect(page.locator("td.why").first).to_contain_text("<img")
    assert page.locator("main img, main script").count() == 0
    assert "taken" not in page.title()
    up.berth("uncordon", "p100")


def test_names_and_labels_as_long_as_they_may_be_break_no_view(page: Page, up: Up) -> None:
    name = "n" * 52
    labels = [flag for n in range(32) for flag in ("--label", f"{n:02}{'k' * 60}={'w' * 63}")]
    made = up.berth("submit", "--id", name, "--gpus", "1", "--model", "H100", *labels)
    assert made.returncode == 0, made.stderr
    up.berth("cancel", name, "--reason", "r" * 1024)
    page.set_viewport_size({"width": 480, "height": 800})
    for where in (f"#/job/default/{name}", f"#/jobs?q={name}", "#/jobs?state=ended"):
        show(page, where)
        expect(page.locator("main")).to_contain_text(name)
        width: Any = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 480, where


def test_a_trial_says_where_it_would_go_or_what_it_lacks(page: Page, up: Up) -> None:
    show(page, "#/try")
    expect(page.locator("#try-verdict")).to_contain_text("would run on g2")
    field = page.get_by_label("Request (JSON)")
    field.fill('{"id": "t", "pod_sets": [{"gpus": 1, "gpu_models": ["H100"]}]}')
    expect(page.locator("#try-verdict")).to_contain_text("H100")
    expect(page.get_by_text("no cluster has H100")).to_be_visible()
    field.fill('{"id": "t", "pod_sets": [{"gpus": -1}]}')
    expect(page.locator(".error:visible").first).to_contain_text("pod_sets[0].gpus")
    assert "request=" in page.url  # so that it can be shared


def test_a_silent_service_is_shown_and_its_return(page: Page, up: Up) -> None:
    [pid] = [each["pid"] for each in up.view["processes"] if each["name"] == "gateway"]
    os.kill(pid, signal.SIGSTOP)
    try:
        told = page.locator("#summary .problems")
        expect(told).to_contain_text("gateway does not answer")
    finally:
        os.kill(pid, signal.SIGCONT)
    expect(page.locator("#summary")).not_to_contain_text("gateway does not answer")


def test_it_comes_back_after_the_dashboard_was_killed(page: Page, up: Up) -> None:
    [pid] = [each["pid"] for each in up.view["processes"] if each["name"] == "dashboard"]
    os.kill(pid, signal.SIGKILL)
    page.wait_for_selector("#live[data-state=lost]")
    expect(page.locator("#summary")).to_contain_text("no connection")
    page.wait_for_selector("#live[data-state=live]")
    expect(page.locator(".tile")).to_have_count(8)
    page.wait_for_function("() => import('/js/store.js').then(({ grids }) => grids.size === 8)")


def test_keys_alone_lead_from_the_fleet_to_one_gpu(page: Page, up: Up) -> None:
    page.set_viewport_size({"width": 480, "height": 800})
    page.locator("canvas.grid").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator(".tip")).to_contain_text("GPU")
    page.keyboard.press("Enter")
    expect(page.locator(".gpu.chosen")).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_label("Search")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    width: Any = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 480


def test_nothing_but_its_own_scripts_run(browser: Browser, up: Up) -> None:
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(up.view["page"])
    assert answer is not None
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    page.wait_for_selector("#live[data-state=live]")
    page.evaluate(
        """() => {
          const script = document.createElement('script');
          script.textContent = 'window.taken = 1';
          document.body.append(script);
          const broken = '<img src="data:x" onerror="window.taken = 2">';
          document.body.insertAdjacentHTML('beforeend', broken);
        }"""
    )
    assert page.evaluate("window.taken === undefined")
    context.close()


def test_the_whole_page_weighs_little(up: Up) -> None:
    from berthmaster.control.dashboard.static_files import FOLDER, read_all

    assert sum(len(each.packed) for each in read_all().values()) <= 150 * 1024
    for path in Path(FOLDER / "js").glob("*.js"):
        assert len(path.read_text().splitlines()) <= 300, path.name
