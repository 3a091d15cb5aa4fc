"""A real Prometheus on the real pipeline: it takes the rules, and every picture gets figures."""

import contextlib
import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import monitoring
from tests.pipeline.running import Up, berth_up
from tests.support.patience import Patience, hang_s

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
pytestmark = [
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="no prometheus and promtool (Debian: apt install prometheus)",
    )
]


def test_promtool_takes_rules_and_configuration() -> None:
    for what, file in (("rules", RULES), ("config", RULES.with_name("prometheus.yaml"))):
        done = subprocess.run(
            ["promtool", "check", what, str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def ports(up: Up) -> dict[str, int]:
    """Where each service's metrics are, as its log says."""
    found = {}
    for log in sorted((up.folder / "logs").glob("*.log")):
        for line in log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if said.get("event") == "starting" or "http_port" in said:
                    found[log.stem] = said["http_port"]
                    break
    return found


@contextlib.contextmanager
def prometheus(folder: Path, targets: list[int]) -> Iterator[str]:
    """One that scrapes these ports of this machine twice a second; where it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "berthmaster",
                "static_configs": [{"targets": [f"127.0.0.1:{target}" for target in targets]}],
            }
        ],
    }
    file = folder / "prometheus.json"
    file.write_text(json.dumps(config))  # JSON is YAML
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(hang_s())


def get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=hang_s()) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def series(base: str, expr: str) -> int:
    found = get(f"{base}/api/v1/query?{urllib.parse.urlencode({'query': expr})}")
    return len(found["result"]) if found else 0


def test_every_picture_has_figures_and_no_alert_is_wrong(tmp_path: Path) -> None:
    with berth_up(tmp_path / "berth") as up:
        for number in range(4):
            job = ("--id", f"j{number}", "--gpus", "1", "--duration", "1s")
            assert up.berth("submit", *job).returncode == 0
        scraped = ports(up)
        assert {"gateway", "resolver", "usage"} <= set(scraped)
        with prometheus(tmp_path, list(scraped.values())) as base:
            for number in range(4):
                up.until(f"j{number}", state="succeeded")
            missing = [
                (where, expr)
                for where, expr in monitoring.expressions()
                if where not in {alert.name for alert in monitoring.ALERTS}
            ]
            submitted = 4
            patience = Patience("every picture has figures", moves=lambda: len(missing))
            while missing:
                patience.look(missing)
                missing = [each for each in missing if not series(base, each[1])]
                submitted += 1  # rates need something to happen while they are looked at
                up.berth("submit", "--id", f"j{submitted}", "--gpus", "1", "--duration", "1s")

            groups = get(f"{base}/api/v1/rules")["groups"]
            rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
            assert set(rules) == {alert.name for alert in monitoring.ALERTS}
            assert {name: rule["health"] for name, rule in rules.items()} == dict.fromkeys(
                rules, "ok"
            ), {name: rule.get("lastError") for name, rule in rules.items()}
            # Nothing is wrong here, so nobody is called.
            assert [name for name, rule in rules.items() if rule["state"] == "firing"] == []
