"""The generated pages are what the code declares."""

import re

import msgspec
import yaml

from berthmaster.lib.messages.workload import JobRequest
from berthmaster.lib.requests import validation
from scripts import settings
from scripts.generated import ROOT
from scripts.reference import pages, request


def test_pages_are_what_the_code_declares() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in pages.pages().items()
        if path.read_text() != text
    ]
    assert stale == [], "run python -m scripts.reference"


def test_whole_job_file_is_accepted_as_it_stands() -> None:
    text = request.page().partition("```yaml\n")[2].partition("```")[0]
    accepted = validation.job_request(msgspec.json.encode(yaml.safe_load(text)))
    assert isinstance(accepted, JobRequest)
    assert accepted.pod_sets[0].topology is not None
    assert accepted.pod_sets[0].topology.max_pods_a_node == 1


def test_table_of_modes_repeats_the_refusals_of_the_gateway() -> None:
    rows = request.page().splitlines()
    assert "| `topology` | yes | yes | refused |" in rows
    assert "| `divide` | yes | refused | refused |" in rows
    assert "| `max_run_s` | yes | yes | yes |" in rows


def test_settings_of_all_services_are_few() -> None:
    assert settings.page().count("\n| `--") <= 134


def test_kubernetes_events_of_the_page_are_reasons_in_the_code() -> None:
    page = (pages.REFERENCE / "kubernetes-events.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|") and "`" in line]
    reasons = {each for line in rows for each in re.findall(r"`([A-Z][A-Za-z]+)`", line)}
    source = "".join(path.read_text() for path in (ROOT / "services").rglob("*.py"))
    assert len(reasons) > 30
    assert sorted(each for each in reasons if f'"{each}"' not in source) == []
