"""What is in schemas/ follows from the messages, and reads as AsyncAPI 3 and JSON Schema."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from cel_expr_python import cel

from berthmaster.lib.nats import subjects
from scripts.schema_tools import __main__ as command
from scripts.schema_tools import contract
from scripts.schema_tools.asyncapi import channels, document
from scripts.schema_tools.comments import comments_in
from scripts.schema_tools.json_schema import MESSAGES, Message, schema_of

ROOT = command.ROOT
DOCUMENT: dict[str, Any] = json.loads((ROOT / "asyncapi.json").read_bytes())


def test_the_committed_schemas_are_those_of_the_messages() -> None:
    assert contract.drift(ROOT) == [], "run scripts/schemas and commit what it writes"


def test_two_runs_make_the_same_bytes() -> None:
    assert contract.generated() == contract.generated()


def test_drift_is_seen_and_mended(tmp_path: Path) -> None:
    assert len(contract.write(tmp_path)) == len(MESSAGES) + 1
    assert contract.drift(tmp_path) == []
    (tmp_path / "json" / "lease.v1.schema.json").write_text("{}")
    (tmp_path / "json" / "lease.v0.schema.json").write_text("{}")
    (tmp_path / "asyncapi.json").unlink()
    wrong = ["asyncapi.json", "json/lease.v0.schema.json", "json/lease.v1.schema.json"]
    assert contract.drift(tmp_path) == wrong
    assert command.main(["--check"], tmp_path) == 1
    assert contract.write(tmp_path) == wrong
    assert command.main(["--check"], tmp_path) == 0


@pytest.mark.parametrize("options", [["--chek"], ["--check", "--check"], ["now"]], ids=str)
def test_wrong_options_write_nothing(options: list[str], tmp_path: Path) -> None:
    assert command.main(options, tmp_path) == 2
    assert list(tmp_path.iterdir()) == []


# JSON Schema


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.name)
def test_a_schema_is_valid_and_refers_to_nothing_outside_itself(message: Message) -> None:
    schema = schema_of(message)
    jsonschema.Draft202012Validator.check_schema(schema)
    for ref in refs_in(schema):
        assert resolves(ref, schema), ref
    assert schema["description"]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.name)
def test_schema_of_every_field_has_a_description(message: Message) -> None:
    schema = schema_of(message)
    structs = {message.type.__name__: schema, **schema.get("$defs", {})}
    lacking = [
        f"{name}.{field}"
        for name, struct in structs.items()
        for field, found in struct.get("properties", {}).items()
        if not found.get("description")
    ]
    assert lacking == []


def test_every_pattern_can_be_compiled_by_re2_as_go_has_it() -> None:
    found = [
        (path.name, pattern)
        for path in [*(ROOT / "json").iterdir(), ROOT / "asyncapi.json"]
        for pattern in patterns_in(json.loads(path.read_bytes()))
    ]
    assert "api.submit_request.schema.json" in dict(found)
    matches = cel.NewEnv(variables={"pattern": cel.Type.STRING}).compile("''.matches(pattern)")
    for _, pattern in found:
        assert matches.eval(data={"pattern": pattern}).type() == cel.Type.BOOL, pattern


@pytest.mark.parametrize(
    ("name", "right"),
    [("a", True), ("a-b", True), ("a\n", False), ("a\nb", False), ("-a", False), ("", False)],
)
def test_a_schema_takes_the_names_that_the_message_takes(name: str, right: bool) -> None:
    (asked,) = (m for m in MESSAGES if m.name == "api.get_request")
    validator = jsonschema.Draft202012Validator(schema_of(asked))
    assert validator.is_valid({"id": name}) is right
    try:
        msgspec.convert({"id": name}, asked.type)
        taken = True
    except msgspec.ValidationError:
        taken = False
    assert taken is right


def test_comments_beside_fields_are_their_descriptions() -> None:
    source = '''
class Thing(Struct):
    """Words of the class."""

    plain: int
    beside: int = 0  # seconds; None = never
    wrapped: Annotated[int, Meta(ge=0)] = (
        7  # of each
    )
    below: float | None = None
    # below: the first line
    # and the second.
    # This one, too, as nothing parts it.
    other: str = "# not a comment"
    # about the code: not a description
    last: int
'''
    assert comments_in(source) == {
        "Thing": {
            "beside": "seconds; None = never",
            "wrapped": "of each",
            "below": "the first line and the second. This one, too, as nothing parts it.",
        }
    }


def test_python_words_are_told_as_those_of_json() -> None:
    (placed,) = (m for m in MESSAGES if m.name == "telemetry.node.v1")
    process = schema_of(placed)["$defs"]["GpuProcess"]["properties"]
    text = "GPU memory in MiB; null = not reported (containers, MIG)."
    assert process["memory_mib"]["description"] == text


# AsyncAPI


def test_the_document_has_the_parts_that_asyncapi_3_asks_for() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= DOCUMENT["info"].keys()
    for server in DOCUMENT["servers"].values():
        assert {"host", "protocol"} <= server.keys()
    names = [*DOCUMENT["channels"], *DOCUMENT["operations"], *DOCUMENT["components"]["schemas"]]
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


def test_every_server_says_how_to_sign_in_and_how_much_it_takes() -> None:
    schemes = DOCUMENT["components"]["securitySchemes"]
    assert schemes["nkey"]["type"] == "asymmetricEncryption"  # one of AsyncAPI's own
    for server in DOCUMENT["servers"].values():
        assert server["security"] == [{"$ref": "#/components/securitySchemes/nkey"}]
        limits = server["x-limits"]
        assert limits["max_request_bytes"] < limits["max_payload_bytes"] == 1024 * 1024


def test_people_find_what_they_may_do_and_where_answers_come() -> None:
    assert DOCUMENT["x-users"]["tenant.{tenant}"] == {
        "description": "A person or program of one tenant.",
        "inbox_prefix": "_INBOX.tenant.{tenant}",
        "publish": ["berth.api.{tenant}.*"],
        "subscribe": [
            "berth.event.{tenant}.>",
            "berth.figures.{tenant}.>",
            "_INBOX.tenant.{tenant}.>",
        ],
    }
    agent = DOCUMENT["x-users"]["agent.{cluster}"]
    assert agent["publish"] == ["berth.agent.{cluster}.*"]
    assert agent["subscribe"] == [
        "berth.assign.{cluster}.>",
        "berth.agent.{cluster}.telemetry",
        "_INBOX.agent.{cluster}.>",
    ]
    for name, operation in DOCUMENT["operations"].items():
        if "reply" in operation:
            assert "inbox prefix" in operation["reply"]["address"]["description"], name


def test_every_reference_resolves() -> None:
    found = list(refs_in(DOCUMENT))
    assert len(found) > 200
    assert [ref for ref in found if not resolves(ref, DOCUMENT)] == []


def test_every_channel_has_messages_and_exactly_the_parameters_of_its_address() -> None:
    for name, channel in DOCUMENT["channels"].items():
        assert channel["messages"], name
        named = re.findall(r"{(\w+)}", channel["address"] or "")
        assert set(channel.get("parameters", {})) == set(named), name
        assert len(named) == len(set(named)), name
        for parameter in channel.get("parameters", {}).values():
            assert parameter["description"]


def test_every_operation_has_a_channel_and_messages_of_that_channel() -> None:
    for name, operation in DOCUMENT["operations"].items():
        assert operation["action"] in ("send", "receive")
        channel = operation["channel"]["$ref"]
        assert channel.removeprefix("#/channels/") in DOCUMENT["channels"]
        for message in operation["messages"]:
            assert message["$ref"].startswith(f"{channel}/messages/"), name
        if "reply" in operation:
            reply = operation["reply"]
            for message in reply["messages"]:
                assert message["$ref"].startswith(f"{reply['channel']['$ref']}/messages/"), name


def test_every_channel_is_used_and_every_request_is_answered() -> None:
    used, answered = set(), set()
    for operation in DOCUMENT["operations"].values():
        used.add(operation["channel"]["$ref"])
        if "reply" in operation:
            used.add(operation["reply"]["channel"]["$ref"])
            answered.add(operation["channel"]["$ref"])
    assert used == {f"#/channels/{name}" for name in DOCUMENT["channels"]}
    asked = {
        f"#/channels/{name}"
        for name, channel in DOCUMENT["channels"].items()
        if name.startswith(("api.", "operator.", "agent.", "login.")) and channel["address"]
    }
    assert answered == asked


def test_every_message_travels_somewhere() -> None:
    named = {name for channel in DOCUMENT["channels"].values() for name in channel["messages"]}
    assert named == set(DOCUMENT["components"]["messages"]) == {m.name for m in MESSAGES}


def test_every_kind_of_subject_has_a_channel() -> None:
    """A function of subjects.py that builds one is used by the document, or makes a pattern."""
    patterns = {
        "aggregate",
        "aggregate_kind",
        "workload_events_of",
        "workloads_of",
        "telemetry_of",
        "job_figures_of",
        "quality_of_all",
        "fleet_facts",
        "node_facts",
        "fleet_of",
        "api_of_all_tenants",
        "agent_of_all_clusters",
        "log_chunks_for",
        "held_of_all_clusters",
        "lane",
        "lane_of_subject",
        "offered",
    }
    readers = {
        "kind_and_verb",
        "parse_workload_event",
        "parse_telemetry",
        "parse_job_figures",
        "parse_node",
        "parse_fact",
        "parse_copy",
        "parse_api",
        "asker",
        "parse_agent",
        "parse_log_chunks",
        "parse_inquiry",
        "kinds_in_lanes",
        "without_lanes",
        "among",
        "covers",
        "jetstream",
    }
    readers |= {"is_decision", "is_archived_story", "cell_of"}
    buckets = {"archive", "archived_decision"}  # which of them is archived_stories' and …decisions'
    functions = {
        name: function
        for name, function in inspect.getmembers(subjects, inspect.isfunction)
        if function.__module__ == subjects.__name__
    }
    called: set[str] = set()
    with pytest.MonkeyPatch.context() as patched:
        for name, function in functions.items():
            patched.setattr(subjects, name, spy(name, function, called))
        channels()
    assert functions.keys() - called == patterns | readers | buckets


def spy(name: str, function: Any, called: set[str]) -> Any:
    def call(*arguments: Any) -> Any:
        called.add(name)
        return function(*arguments)

    return call


def test_the_document_is_what_the_code_makes() -> None:
    assert json.loads(json.dumps(document())) == DOCUMENT


def patterns_in(value: Any) -> Iterator[str]:
    """Every pattern of strings, at any depth."""
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        for inner in value.values():
            yield from patterns_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from patterns_in(inner)


def refs_in(value: Any) -> Iterator[str]:
    """Every reference, at any depth."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from refs_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from refs_in(inner)


def resolves(ref: str, root: Any) -> bool:
    """Whether a local reference leads somewhere."""
    if not ref.startswith("#/"):
        return False
    for part in ref.removeprefix("#/").split("/"):
        if not isinstance(root, dict) or part not in root:
            return False
        root = root[part]
    return True
