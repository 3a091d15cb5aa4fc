"""The diagnosis of a survey: the same survey always gives the same report."""

from berthmaster.cli.doctor import hub as of_hub
from berthmaster.cli.doctor import worker as of_worker
from berthmaster.cli.doctor.facts import Survey
from berthmaster.cli.doctor.findings import Finding, Report


def diagnose(survey: Survey) -> Report:
    """Return all findings, the hub's first, in the order of the checks."""
    found: list[Finding] = []
    if survey.hub is not None:
        found += of_hub.findings(survey.hub, survey)
    found += of_worker.across(survey)
    for worker in survey.workers:
        found += of_worker.findings(worker, survey)
    blocked = any(finding.level == "blocks" for finding in found)
    return Report(mode=survey.mode, ready=not blocked, findings=found)
