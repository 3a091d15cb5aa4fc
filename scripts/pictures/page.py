"""docs/page-*.png: the page of a pipeline that runs, as Chromium shows it.

scripts/chromium.sh python -m scripts.pictures.page
"""

import asyncio
import os
import tempfile
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from berthmaster.cli.demo.commands import with_an_odd_one
from berthmaster.cli.demo.load import Load
from berthmaster.client import Client
from berthmaster.lab.emulator.workloads import generated
from berthmaster.lib.access.keys import creds_file
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.supervisor.plan import UpOptions
from berthmaster.lib.supervisor.stack import Stack

DOCS = Path(__file__).parents[2] / "docs" / "images"
JOBS = 1_100
RATE_PER_S = 14.0
VIEWS = (  # name, address, theme
    ("page-fleet", "#/fleet", "dark"),
    ("page-job", "#/job/default/{job}", "dark"),
    ("page-jobs", "#/jobs", "light"),
    ("page-try", "#/try", "light"),
)


async def _jobs(stack: Stack) -> str:
    """Fill the fleet; one of its larger jobs that runs."""
    keys = creds_file(stack.keys, "operator")
    inbox = inbox_prefix("operator")
    async with Client.connect(stack.url, creds_file=keys, inbox_prefix=inbox) as berth:
        arrivals = generated(seed=7, rate_per_s=RATE_PER_S, count=JOBS, gang_share=0.15)
        await Load(berth).run(with_an_odd_one(arrivals), 1.0)
        await asyncio.sleep(5)
        running = (await berth.list(states=["running"], limit=1000)).workloads
        return max(running, key=lambda work: (work.gpus <= 16, work.gpus)).id


async def _take(browser: Browser, page_url: str, job: str) -> None:
    for name, address, theme in VIEWS:
        context = await browser.new_context(
            viewport={"width": 1280, "height": 800},
            color_scheme="light" if theme == "light" else "dark",
        )
        page = await context.new_page()
        await page.goto(page_url + address.format(job=job))
        await page.wait_for_selector("#live[data-state=live]")
        await page.wait_for_timeout(3_000)
        await page.screenshot(path=DOCS / f"{name}.png")
        await context.close()


async def main() -> None:
    """Bring it up, fill it, look at it."""
    with tempfile.TemporaryDirectory() as folder:
        options = UpOptions(folder=Path(folder), speed=20.0, sync="default")
        async with Stack(options, announce=False) as stack, async_playwright() as driver:
            program = os.environ.get("BERTH_CHROMIUM", "/usr/bin/chromium")
            browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
            job = await _jobs(stack)
            await _take(browser, stack.page, job)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
