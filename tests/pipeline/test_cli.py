"""The commands against the whole pipeline, as processes: what they say and their exit codes."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.bus.proxy import Passing, proxied
from tests.pipeline.running import Up, berth_up, environment, run_berth
from tests.support import examples, warm
from tests.support.patience import hang_s


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with berth_up(tmp_path_factory.mktemp("cli") / "berth") as running:
        yield running


def test_a_job_of_flags_runs_to_its_end_and_its_story_tells(up: Up) -> None:
    reply = up.json("submit", "--id", "flags", "--gpus", "1", "--duration", "10s")
    assert (reply["type"], reply["id"], reply["tenant"]) == ("api.submitted.v1", "flags", "default")
    up.until("flags", state="succeeded")
    shown = up.berth("job", "flags").stdout
    kinds = [line.split()[3] for line in shown.splitlines() if line[:3].strip().isdecimal()]
    assert [kind for kind in ("placed", "claimed", "running", "succeeded") if kind in shown] == [
        "placed",
        "claimed",
        "running",
        "succeeded",
    ], kinds
    assert "1 GPU, 1 CPU, 1 GiB; for about 10s" in shown


def test_submitting_twice_is_harmless_and_other_content_is_refused(up: Up) -> None:
    assert up.berth("submit", "--id", "twice", "--gpus", "1").returncode == 0
    again = up.berth("submit", "--id", "twice", "--gpus", "1")
    assert again.returncode == 0
    assert "twice was accepted before" in again.stdout
    other = up.berth("submit", "--id", "twice", "--gpus", "2")
    assert other.returncode == 1
    assert "refused (conflict)" in other.stderr


def test_a_file_and_standard_input_submit_and_one_bad_request_does_not_stop_the_rest(
    up: Up, tmp_path: Path
) -> None:
    lines = [
        {"id": "file-1"},
        {"id": "file-2", "pod_sets": [{"gpus": -1}]},
        {"id": "file-3", "prioritty": 5},
        {"id": "file-4"},
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    done = up.berth("submit", "-", input=text)
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["file-1", "file-4"]
    assert "pod_sets[0].gpus: '-1' refused (invalid)" in done.stderr
    assert "prioritty" in done.stderr
    path = tmp_path / "one.json"
    path.write_text('{\n  "id": "file-5"\n}\n')
    assert up.berth("submit", str(path)).returncode == 0


def test_a_request_that_is_too_large_is_not_sent_and_the_limit_is_told(up: Up) -> None:
    body = json.dumps({"id": "large", "labels": {"x": "y" * 2_000_000}})
    done = up.berth("submit", "-", input=body)
    assert done.returncode == 1
    assert "the request has 2,000,0" in done.stderr
    assert "the server takes at most 1,048,064" in done.stderr


def test_a_job_that_fits_nowhere_waits_and_why_says_what_would_help(up: Up) -> None:
    assert up.berth("submit", "--id", "odd", "--gpus", "1", "--model", "Q9").returncode == 0
    shown = up.berth("why", "odd")
    assert shown.returncode == 0
    assert "default/odd is queued" in shown.stdout
    assert "no such GPU model" in shown.stdout
    assert "What would help:" in shown.stdout
    reply = up.json("why", "odd")
    assert (reply["type"], reply["state"]) == ("api.why.v1", "queued")
    assert up.berth("cancel", "odd", "--reason", "a test").returncode == 0
    assert up.until("odd", state="cancelled")["reason"] == "a test"
    assert up.berth("job", "odd").returncode == 0


def test_why_of_a_placed_job_shows_the_ranking(up: Up) -> None:
    assert up.berth("submit", "--id", "placed", "--gpus", "1", "--duration", "1h").returncode == 0
    up.until("placed", state="running")
    shown = up.berth("why", "placed").stdout
    assert "-> " in shown
    assert "SCORE" in shown
    assert up.berth("cancel", "placed").returncode == 0
    up.until("placed", state="cancelled")


def test_dry_run_says_where_and_submits_nothing(up: Up) -> None:
    reply = up.json("submit", "--id", "dry", "--gpus", "1", "--dry-run")
    assert (reply["type"], reply["placed"]) == ("api.dry_run.v1", True)
    assert up.berth("job", "dry").returncode == 1
    cannot = up.berth("submit", "--gpus", "1", "--model", "Q9", "--dry-run")
    assert cannot.returncode == 1
    assert "It would wait: " in cannot.stdout


def test_a_name_that_nothing_has_reported_is_warned_of(up: Up) -> None:
    done = up.berth("cordon", "no-such")
    assert done.returncode == 0  # it may come yet
    assert "nothing was heard of no-such so far" in done.stderr
    assert up.berth("uncordon", "no-such").returncode == 0
    shown = up.berth("top", "no-such", "--once")
    assert shown.returncode == 1
    assert "no node of no-such has reported" in shown.stderr


def test_nobody_declares_a_cluster_lost_in_passing(up: Up) -> None:
    asked = up.berth("lost", "no-such", "--reason", "fire", input="")
    assert asked.returncode == 2
    assert "Say --yes if it is gone for certain" in asked.stderr
    assert up.berth("lost", "no-such", "--reason", "fire", "--yes").returncode == 0
    assert up.berth("lost", "no-such", "--undo", "--reason", "a drill").returncode == 0


def test_a_tenant_that_asks_for_more_than_its_own_is_told_and_not_left_waiting(up: Up) -> None:
    seed = str(up.folder / "keys" / "tenant.default.creds")
    url = json.loads((up.folder / "connection.json").read_text())["url"]
    for command in (["watch", "--all-tenants"], ["top", "--once"], ["cordon", "t4"]):
        done = up.berth(*command, "--server", url, "--creds-file", seed)
        assert done.returncode == 1, command
        assert "permissions violation" in done.stderr
        assert "what concerns all tenants takes the operator's credentials" in done.stderr


def test_why_of_a_job_that_has_ended_says_how(up: Up) -> None:
    assert up.berth("submit", "--id", "over", "--gpus", "1", "--model", "Q9").returncode == 0
    assert up.berth("cancel", "over", "--reason", "not needed").returncode == 0
    why = up.json("why", "over")
    assert (why["state"], why["summary"]) == (
        "cancelled",
        "it has ended: cancelled: not needed; `berth job over` tells its story",
    )
    kept = up.berth("reprioritize", "over", "7")
    assert kept.stdout.strip() == "over is cancelled and keeps its priority: it had ended before"


def test_wait_follows_a_job_to_its_end(up: Up) -> None:
    done = up.berth("submit", "--id", "waited", "--gpus", "1", "--duration", "20s", "--wait")
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()[1:]] == [
        "submitted",
        "placed",
        "claimed",
        "running",
        "succeeded",
    ]


def test_wait_says_by_its_exit_code_what_became_of_jobs(up: Up) -> None:
    for name, seconds in (("short", "15s"), ("long", "10h")):
        up.berth("submit", "--id", name, "--gpus", "1", "--duration", seconds)
    ran = up.berth("wait", "short", "long", "--until", "running", "--at-most", "20s")
    assert ran.returncode == 0, ran.stderr
    ended = up.berth("wait", "short")
    assert (ended.returncode, "succeeded" in ended.stdout) == (0, True), ended.stderr
    assert up.berth("wait", "short").stdout == "short is succeeded\n"  # no more is waited for

    late = up.berth("wait", "long", "short", "--at-most", "0.3s")
    assert late.returncode == 5
    assert late.stderr.endswith("berth: not ended within 0.3s: long\n")
    up.berth("cancel", "long")
    assert up.berth("wait", "long", "--at-most", "20s").returncode == 1
    unknown = up.berth("wait", "nobody")
    assert (unknown.returncode, "not_found" in unknown.stderr) == (1, True)


def test_a_workflow_of_a_file_is_waited_for_by_its_set_and_somebody_is_told(
    up: Up, tmp_path: Path
) -> None:
    flow = tmp_path / "flow.yaml"
    told = tmp_path / "told"
    job = "pod_sets: [{gpus: 0}]\nexpected_duration_s: 5\nset: flow\nlabels: {of: me}\n"
    flow.write_text(f"id: f-last\nafter: 'f-first:ended'\n{job}---\nid: f-first\n{job}")
    tried = up.berth("submit", "-f", str(flow), "--dry-run")
    assert tried.returncode == 0, tried.stderr
    applied = up.berth("submit", "-f", str(flow))
    assert [line.split()[0] for line in applied.stdout.splitlines()] == ["f-first", "f-last"]
    then = f'echo "$BERTH_OUTCOME $BERTH_WORKLOADS" > {told}'
    done = up.berth("wait", "--set", "flow", "--label", "of=me", "--at-most", "60s", "--then", then)
    assert done.returncode == 0, done.stderr
    assert told.read_text() == "ok f-first f-last\n"
    listed = up.berth("jobs", "--set", "flow", "--sort", "-name", "-o", "name")
    assert listed.stdout == "f-last\nf-first\n"
    header, *rows = up.berth("jobs", "--set", "flow", "-o", "csv").stdout.splitlines()
    assert (header.split(",")[:3], len(rows)) == (["tenant", "id", "state"], 2)
    everybody = up.berth("jobs", "--all-tenants", "--set", "flow", "-o", "wide").stdout
    assert everybody.startswith("TENANT ")
    flow.write_text(f"id: f-x\nafter: f-y\n{job}---\nid: f-y\nafter: f-x\n{job}")
    circle = up.berth("submit", str(flow))
    assert circle.returncode == 2
    assert "goes in a circle: f-x -> f-y -> f-x" in circle.stderr
    none = up.berth("wait", "--set", "no-such")
    assert (none.returncode, none.stderr) == (1, "berth: there is no workload of set no-such\n")


def test_a_tenant_asks_for_gpus_queues_and_its_events_since(up: Up) -> None:
    key = ("--creds-file", str(up.folder / "keys" / "tenant.default.creds"))
    url = json.loads((up.folder / "connection.json").read_text())["url"]
    tenant = ("--server", url, *key)
    models = up.json("gpus", *tenant)["models"]
    assert models
    assert all(one["gpus"] >= one.get("open_gpus", 0) for one in models)
    names = up.berth("gpus", "-o", "name", *tenant).stdout.split()
    assert sorted(names) == sorted(one["model"] for one in models)
    odd = up.berth("gpus", f"{names[0]}x", *tenant)
    assert odd.returncode == 2
    assert f"did you mean {names[0]}?" in odd.stderr
    queues = up.berth("queue", "list", *tenant)
    assert queues.returncode == 0, queues.stderr
    assert up.berth("jobs", "--all-tenants", *tenant).returncode == 1
    lines = subprocess.Popen(
        [sys.executable, "-m", "berthmaster.cli.main", "watch", "--since", "0", "--json", *tenant],
        stdout=subprocess.PIPE,
        env=environment(up.folder),
    )
    try:
        assert lines.stdout is not None
        assert json.loads(lines.stdout.readline())["event"]["type"] == "workload.submitted.v1"
    finally:
        lines.terminate()
        lines.communicate(timeout=hang_s())


@pytest.mark.parametrize("example", [examples.in_python, examples.in_go, examples.in_node])
def test_an_example_submits_and_follows_with_a_nats_client_alone(
    up: Up, example: Callable[[], list[str]]
) -> None:
    program = example()
    job = example.__name__.replace("_", "-")
    key = str(up.folder / "keys" / "tenant.default.creds")
    url = json.loads((up.folder / "connection.json").read_text())["url"]
    told, output = asyncio.run(_followed_over_a_cut(program, url, ("default", key, job)))
    kinds = [line.split()[1] for line in output.splitlines()]
    assert (kinds[0], kinds[-1]) == ("workload.submitted.v1", "workload.succeeded.v1"), told
    assert len(set(output.splitlines())) == len(kinds)

    def run(name: str) -> tuple[int, str, str]:
        argv = [*program, url, "default", key, name]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=hang_s(), check=False)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor() as threads:  # most of their time is the start of their tools
        again, (code, nothing, refused) = threads.map(run, (job, "no id"))
    assert again == (0, output, "")  # the same request and story
    assert (code, nothing) == (1, "")
    assert refused.startswith('refused: id is "no id"; right is 1 to ')


async def _followed_over_a_cut(
    program: list[str], url: str, words: tuple[str, ...]
) -> tuple[str, str]:
    """What an example says, of whom the first news behind the answer to its submit is lost with the
    connection."""
    async with proxied(url) as proxy:
        stored = lost = False

        def lose(passing: Passing) -> bool:
            nonlocal stored, lost
            if stored and not lost and passing.payload:
                lost = True
                asyncio.get_running_loop().call_soon(proxy.cut)
                return True
            stored |= b"api.submitted.v1" in passing.payload
            return False

        proxy.to_client = lose
        pipe = asyncio.subprocess.PIPE
        argv = [*program, proxy.url, *words]
        process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
        try:
            async with asyncio.timeout(hang_s()):
                output, told = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert (process.returncode, lost) == (0, True), told
        return told.decode(), output.decode()


def test_whoami_says_where_and_as_whom_and_holds_nothing_secret(up: Up) -> None:
    operator = up.json("context", "show")
    assert (operator["user"], operator["tenant"]) == ("operator", "default")
    key = up.folder / "keys" / "tenant.default.creds"
    tenant = up.json("context", "show", "--creds-file", str(key))
    assert (tenant["user"], tenant["creds_file"]) == ("tenant.default", str(key))
    assert tenant["account"] != operator["account"]
    assert tenant["answered_ms"] > 0
    assert (
        key.read_text().split()[5]
        not in up.berth("context", "show", "--creds-file", str(key)).stdout
    )


def test_a_context_names_the_bus_the_tenant_and_the_queue(up: Up, tmp_path: Path) -> None:
    env = environment(tmp_path)

    def berth(*argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        return warm.run_berth(*argv, env=env | more, cwd=tmp_path, limit_s=hang_s(), input=None)

    key = up.folder / "keys" / "tenant.default.creds"
    assert up.berth("queue", "set", "night", "--allow", "default").returncode == 0
    made = berth("context", "set", "here", "--server", up.json("context", "show")["server"],
                 "--queue", "night", "--creds-file", str(key))  # fmt: skip
    assert made.returncode == 0, made.stderr
    submitted = berth("submit", "--id", "by-context", "--gpus", "1")
    assert submitted.returncode == 0, submitted.stderr
    assert up.json("job", "by-context")["workload"]["queue"] == "night"
    assert completed(up, "bash", "why", "by-c") == "plain,by-context\n"


def completed(up: Up, shell: str, *words: str, own: str = "operator") -> str:
    """What a shell is told of the last word."""
    typed = ("berth", *words)
    own_key = up.folder / "keys" / f"{own}.creds"
    env = environment(up.folder.parent) | {
        "_BERTH_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(typed),
        "COMP_CWORD": typed[-1] if shell == "fish" else str(len(typed) - 1),
        "BERTH_DATA": str(up.folder),
        "BERTH_NATS_CREDS_FILE": str(own_key),
        "BERTH_COMPLETION_LIMIT_S": "30",  # the machine may have much to do
    }
    return warm.run_berth(env=env, cwd=up.folder, limit_s=hang_s(), input=None).stdout


def test_a_shell_completes_what_there_is_and_nothing_that_a_tenant_may_not_know(up: Up) -> None:
    assert up.berth("queue", "set", "dusk").returncode == 0
    cluster = up.json("top", "--once")[0]["cluster"]
    model = up.json("gpus")["models"][0]["model"]
    tenant = "tenant.default"
    assert f"plain,{cluster}\n" in completed(up, "bash", "cordon", cluster[:2])
    assert completed(up, "bash", "submit", "--cluster", cluster[:2], own=tenant).strip() == ""
    assert f"plain,{model}\n" in completed(up, "bash", "submit", "--model", model[:1], own=tenant)
    assert completed(up, "zsh", "jobs", "--queue", "dus").startswith("plain\ndusk\n")
    assert completed(up, "bash", "jobs", "--queue", "dus", own=tenant) == "plain,dusk\n"
    assert completed(up, "fish", "submit", "--runtime", "tor", own=tenant).startswith("plain,torch")


def test_a_model_a_tenant_and_a_parameter_that_are_misspelt_are_answered_with_the_nearest(
    up: Up,
) -> None:
    model = up.json("gpus")["models"][0]["model"]
    sent = up.berth("submit", "--id", "odd", "--gpus", "1", "--model", f"{model}x", "--dry-run")
    assert f"no cluster has GPUs of model {model}x, did you mean {model}?" in sent.stderr
    hint = "(no tenant defualt has a key here, did you mean default?)"
    assert hint in up.berth("job", "flags", "--tenant", "defualt").stderr
    assert hint in up.berth("jobs", "--tenant", "defualt").stderr
    ordered = up.berth("evict", "nobody", "--tenant", "defualt", "--as-operator")
    assert "did you mean the tenant 'default'?" in ordered.stderr
    key = str(up.folder / "keys" / "tenant.default.creds")
    nothing = up.berth("job", "nobody", "--creds-file", key)
    assert "did you mean" not in nothing.stderr
    param = ("submit", "--gpus", "1", "--runtime", "torch", "--param", "proceses=2", "--", "t.py")
    assert "did you mean 'processes'?" in up.berth(*param).stderr


def test_a_cordoned_cluster_shows_it_and_gets_nothing_new(up: Up) -> None:
    names = [row["cluster"] for row in up.json("top", "--once")]
    assert len(names) == 8
    target = names[1]
    assert up.berth("cordon", target, "--reason", "new racks").returncode == 0
    assert f"{target} is cordoned: new racks" in up.berth("top", "--once").stdout
    told = up.berth("problems")  # a note, nothing that is broken
    assert told.returncode == 0
    assert f"note    {target}: cordoned: new racks\n" in told.stdout
    asked = up.berth("submit", "--gpus", "1", "--cluster", target, "--dry-run")
    assert asked.returncode == 1
    assert "cordon" in asked.stdout
    assert up.berth("uncordon", target).returncode == 0
    assert "is cordoned" not in up.berth("top", "--once").stdout


def test_what_if_there_were_another_cluster_says_what_would_move_and_moves_nothing(up: Up) -> None:
    assert up.berth("submit", "--id", "wants", "--gpus", "1", "--model", "Q9").returncode == 0
    added = up.json("whatif", "add-cluster", "new", "--model", "Q9", "--nodes", "2", "--gpus", "4")
    assert (added["type"], added["change"]) == (
        "api.whatif.v1",
        "add new, usual machines (2 nodes, 8 GPUs)",
    )
    assert {moved["id"]: moved["would"] for moved in added["placed"]}["wants"] == "new"
    assert "new" not in up.berth("top", "--once").stdout.split()
    assert up.berth("cancel", "wants").returncode == 0


def test_what_if_a_job_were_submitted_or_a_cluster_cordoned(up: Up) -> None:
    asked = up.json("whatif", "submit", "--id", "supposed", "--gpus", "1", "--model", "Q9")
    assert asked["job"]["state"] == "queued"
    assert up.berth("job", "supposed").returncode == 1  # nobody submitted it
    wrong = up.berth("whatif", "cordon", "no-such")
    assert wrong.returncode == 1
    assert "cordon.cluster" in wrong.stderr
    held = up.berth("whatif", "queue", "default", "--hold")
    assert held.stdout.startswith("make queue default: "), held.stderr


def test_top_of_queues_shows_how_the_resolver_does(up: Up) -> None:
    report = up.json("top", "--queues", "--once")
    assert (report["type"], report["cell"]) == ("quality.v1", "all")
    assert 0 <= report["allocation_percent"] <= 100
    assert report["decider"].startswith("resolver/")
    seed = str(up.folder / "keys" / "tenant.default.creds")
    url = json.loads((up.folder / "connection.json").read_text())["url"]
    done = up.berth("top", "--queues", "--once", "--server", url, "--creds-file", seed)
    assert done.returncode == 1
    assert "permissions violation" in done.stderr


def test_a_queue_is_made_listed_and_used_by_whom_it_allows(up: Up) -> None:
    made = up.berth("queue", "set", "vision", "--priority", "5", "--limit", "8", "--allow", "lab")
    assert made.returncode == 0, made.stderr
    assert up.berth("queue", "set", "vision", "--weight", "2").returncode == 0
    (queue,) = [each for each in up.json("queue", "list") if each["queue"] == "vision"]
    assert {name: queue[name] for name in ("priority", "weight", "tenants")} == {
        "priority": 5,
        "weight": 2.0,
        "tenants": ["lab"],
    }
    refused = up.berth("submit", "--id", "q1", "--queue", "vision", "--gpus", "1")
    assert refused.returncode == 1
    assert "queue" in refused.stderr
    lab = up.berth("submit", "--id", "q1", "--queue", "vision", "--gpus", "1", "--tenant", "lab")
    assert lab.returncode == 0, lab.stderr


def test_a_runtime_is_set_named_and_removed_and_refused_by_name(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "tune.json"
    parameters = {"steps": {"type": "integer", "default": 1}}
    body = {"runtime": "tune", "parameters": parameters, "template": {"env": {"N": "{{steps}}"}}}
    file.write_text(json.dumps(body))
    made = up.berth("runtime", "apply", "-f", str(file))
    assert made.returncode == 0, made.stderr
    names = [each["runtime"] for each in up.json("runtime", "list")]
    assert names == ["jax", "mpi", "notebook", "plain", "ray", "torch", "tune"]
    version = up.json("runtime", "show", "tune")["version"]

    ask = ("submit", "--id", "tuned", "--gpus", "1", "--runtime", "tune")
    wrong = up.berth(*ask, "--param", "steps=many")
    assert wrong.returncode == 1
    assert "runtime.parameters.steps" in wrong.stderr
    done = up.berth(*ask, "--param", "steps=7")
    assert done.returncode == 0, done.stderr
    story = up.json("job", "tuned")["story"]
    used = story[0]["event"]["request"]["runtime_used"]
    assert (used["version"], used["template"]["env"]) == (version, {"N": "7"})

    file.write_text(json.dumps(body | {"template": {"hostNetwork": True}}))
    never = up.berth("runtime", "apply", "-f", str(file))
    assert never.returncode == 2
    assert "template.hostNetwork" in never.stderr
    assert up.berth("runtime", "remove", "tune").returncode == 0
    late = up.berth("submit", "--id", "late", "--gpus", "1", "--runtime", "tune")
    assert late.returncode == 1
    assert "runtime.name" in late.stderr


def test_priorities_change_while_a_job_waits(up: Up) -> None:
    assert up.berth("submit", "--id", "prio", "--gpus", "1", "--model", "Q9").returncode == 0
    changed = up.berth("reprioritize", "prio", "-7")
    assert changed.returncode == 0, changed.stderr
    assert up.json("job", "prio")["workload"]["priority"] == -7
    for name in ("stuck-1", "stuck-2"):
        up.json("submit", "--id", name, "--set", "stuck", "--gpus", "1", "--model", "Q9")
    all_of_it = up.berth("reprioritize", "--set", "stuck", "prio", "7")
    assert sorted(line.split()[0] for line in all_of_it.stdout.splitlines()) == [
        *("prio", "stuck-1", "stuck-2")
    ]
    assert up.json("job", "stuck-2")["workload"]["priority"] == 7
    assert up.berth("cancel", "--set", "stuck").returncode == 0
    assert up.berth("reprioritize", "prio", "soon").returncode == 2
    assert up.berth("cancel", "prio", "no-such-one").returncode == 1  # one of them was there
    up.until("prio", state="cancelled")


def test_watch_shows_the_story_and_what_comes(up: Up) -> None:
    assert up.berth("submit", "--id", "seen", "--gpus", "1", "--duration", "60s").returncode == 0
    watching = subprocess.Popen(
        [
            *(sys.executable, "-m", "berthmaster.cli.main", "watch", "seen", "--json"),
            *("--data", str(up.folder)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(up.folder.parent),
    )
    try:
        assert watching.stdout is not None
        kinds: list[str] = []
        while not kinds or kinds[-1] != "workload.succeeded.v1":
            kinds.append(json.loads(watching.stdout.readline())["event"]["type"])
    finally:
        watching.terminate()
        watching.communicate(timeout=hang_s())
    happened = ("submitted", "placed", "claimed", "running", "succeeded")
    assert kinds == [f"workload.{kind}.v1" for kind in happened]


def test_top_shows_the_fleet_and_the_nodes_of_a_cluster(up: Up) -> None:
    rows = up.json("top", "--once")
    assert len(rows) == 8
    largest = max(rows, key=lambda row: row["gpus"])["cluster"]
    nodes = up.json("top", largest, "--once")
    assert sum(len(node["gpu_milli_used"]) for node in nodes) > 0
    assert all(node["utilization_percent"] is not None for node in nodes)


def test_top_on_a_terminal_refreshes_in_place_until_it_is_interrupted(up: Up) -> None:
    terminal, inside = pty.openpty()
    termios.tcsetwinsize(inside, (24, 120))
    argv = [
        sys.executable,
        "-m",
        "berthmaster.cli.main",
        "top",
        "--interval",
        "0.1",
        "--data",
        str(up.folder),
    ]
    watching = subprocess.Popen(
        argv,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=environment(up.folder.parent) | {"TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(inside)
    shown = b""
    try:
        while shown.count(b"FRAG: free") < 3:
            shown += os.read(terminal, 65536)
        watching.send_signal(signal.SIGINT)
        while watching.poll() is None:
            with contextlib.suppress(OSError):  # the terminal has no other end any more
                shown += os.read(terminal, 65536)
        assert watching.returncode == 130
    finally:
        watching.kill()
        watching.wait()
        os.close(terminal)
    assert shown.index(b"\x1b[?1049h") < shown.index(b"FRAG: free")  # a screen of its own
    assert b"\x1b[?1049l" in shown  # which is left at the end


def test_a_small_replay_accounts_for_every_workload_and_the_audit_is_clean(up: Up) -> None:
    argv = (
        "demo",
        "replay",
        "generated",
        "--limit",
        "60",
        "--rate",
        "60",
        "--at-most",
        "6",
        "--json",
    )
    done = up.berth(*argv)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    account = report["account"]
    assert (report["balanced"], account["offered"], account["submitted"]) == (True, 60, 60)
    assert account["missing"] == 0
    audit = up.berth("audit", "--json")
    assert audit.returncode == 0, audit.stdout
    again = up.berth("replay-decisions", "--json")
    assert again.returncode == 0, again.stdout
    assert json.loads(again.stdout)["equal"] > 0
    one = up.json("replay-decisions", "--last", "1", "--since", "1h")
    assert (one["repeated"], one["decisions"]) == (1, json.loads(again.stdout)["decisions"])
    none = up.berth("replay-decisions", "--since", "2100-01-01T00:00:00Z")
    assert none.returncode == 1
    assert "None was repeated" in none.stdout
    other = up.json("replay-decisions", "--set", "fit=0", "--set", "room=1", "--first", "3")
    compared = other["otherwise"]["compared"]
    assert compared["decisions"] == compared["same"] + compared["would_differ"] > 0
    wrong = up.berth("replay-decisions", "--set", "tightness=1")
    assert wrong.returncode == 2
    assert "'tightness=1' is no setting" in wrong.stderr


def test_a_backup_is_added_to_and_recover_shows_what_it_would_do(up: Up, tmp_path: Path) -> None:
    folder = str(tmp_path / "backup")
    first = {one["stream"]: one for one in up.json("backup", folder)}
    assert first["WORKLOADS"]["added"] == first["WORKLOADS"]["messages"] > 0
    again = {one["stream"]: one for one in up.json("backup", folder)}
    assert again["WORKLOADS"]["messages"] >= first["WORKLOADS"]["messages"]
    assert again["WORKLOADS"]["added"] < first["WORKLOADS"]["added"]
    unreasoned = up.berth("recover", "--yes")
    assert unreasoned.returncode == 2
    assert "--reason is missing" in unreasoned.stderr
    shown = up.json("recover", "--backup", folder)
    assert (shown["damage"], shown["silent"], shown["built"]) == ([], [], False)
    assert set(shown["asked"]) == set(shown["answered"])
    assert {one["outcome"] for one in shown["lines"]} <= {"claimed", "queued"}  # jobs come and go
    told = up.berth("recover")
    assert "No damage is known." in told.stdout
    assert "Nothing is changed." in told.stdout


def test_no_dead_letters_were_left(up: Up) -> None:
    assert up.json("problems", "dead") == []
    assert "No dead letters" in up.berth("problems", "dead").stdout


@pytest.mark.parametrize(
    "argv",
    [("jobs",), ("why",), ("top", "--once"), ("submit", "--gpus", "1"), ("watch",), ("audit",)],
)
def test_a_bus_that_is_not_there_is_told_in_time(argv: tuple[str, ...], tmp_path: Path) -> None:
    told = run_berth(*argv, "--server", "nats://127.0.0.1:9", home=tmp_path)
    assert told.returncode == 4
    assert "no NATS server at nats://127.0.0.1:9" in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1


def test_a_bus_without_services_is_told_in_time(tmp_path: Path) -> None:
    with berth_up(tmp_path / "berth", "--services", "scorer") as alone:
        told = alone.berth("jobs")
        assert told.returncode == 4
        assert "nobody listens" in told.stderr


def test_help_is_quick_and_names_every_command(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "berthmaster.cli.main", "--help"],
        capture_output=True,
        text=True,
        timeout=hang_s(),
        env=environment(tmp_path),
        check=False,
    )
    assert told.returncode == 0
    # What takes time is what is imported: 40 ms on an idle machine without these.
    imported = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines()}
    assert "click" in imported
    assert not imported & {"msgspec", "nats", "aiohttp", "asyncio", "numpy", "prometheus_client"}
    for name in ("up", "demo", "submit", "why", "top", "problems", "audit", "serve"):
        assert f"\n  {name} " in told.stdout


@pytest.mark.parametrize("name", ["up", "demo", "submit", "watch", "queue", "top", "audit"])
def test_every_command_explains_itself_within_80_columns(name: str, tmp_path: Path) -> None:
    told = run_berth(name, "--help", home=tmp_path)
    assert told.returncode == 0
    assert max(len(line) for line in told.stdout.splitlines()) <= 80
