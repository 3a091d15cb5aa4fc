"""What looks like a secret, and what only resembles one."""

import json

import pytest

from berthmaster.lib.runtime.redact import HIDDEN, redact, redact_bytes, secret_in

BODY = "Proc-Type: 4,ENCRYPTED\nMHcC+/a="
PEM = f"-----BEGIN EC PRIVATE KEY-----\n{BODY}\n-----END EC PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
SEED = "SUA" + "B2" * 27 + "C"
AWS = "AKIA" + "ABCDEFGH12345678"
GITHUB = "ghp_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (PEM, "a private key"),
        (PEM.partition("-----END")[0], "a private key"),
        (JWT, "a JSON Web Token"),
        (SEED, "an nkey seed"),
        (AWS, "an AWS key"),
        (GITHUB, "an access token"),
    ],
)
def test_a_secret_is_known_and_hidden_alone_in_text_and_in_json_within_json(
    text: str, kind: str
) -> None:
    assert secret_in(text) == kind
    assert redact(text) == HIDDEN
    once = json.dumps({"value": f"<{text}>", "after": 1})
    assert json.loads(redact(once)) == {"value": f"<{HIDDEN}>", "after": 1}
    twice = json.dumps({"body": once})
    assert json.loads(json.loads(redact(twice))["body"]) == {"value": f"<{HIDDEN}>", "after": 1}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://me:pw@host:4222", "nats://<hidden>@host:4222"),
        ("Authorization: Bearer abcdefgh1234", "Authorization: Bearer <hidden>"),
        ("https://x/?token=abc&page=2", "https://x/?token=<hidden>&page=2"),
        ('{"DB_PASSWORD":"a b","x":"y"}', '{"DB_PASSWORD":"<hidden>","x":"y"}'),
        ('{"api_key": "abc", "n": 1}', '{"api_key": "<hidden>", "n": 1}'),
    ],
)
def test_what_is_named_as_a_secret_is_hidden_and_its_company_is_not(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "nats_creds_file=/run/secrets/nats_seed",
        "tokens: 5, max_tokens=512",
        "berth.workload.acme.task-aaaaaaaaaaaaaaaaaaaaaaaaaa.placed.berlin",
        '{"secret_env":{"A":{"name":"wandb","key":"api"}}}',
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "S" * 80,
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text
    assert secret_in(text) == ""


def test_bytes_of_any_kind_are_redacted_before_they_are_cut() -> None:
    assert redact_bytes(b"\xff\x00 " + SEED.encode() + b" rest", 100) == b"\xff\x00 <hidden> rest"
    assert redact_bytes(b"x" * 90 + b" " + SEED.encode(), 100) == b"x" * 90 + b" <hidden>"


@pytest.mark.parametrize("behind", ['\\"', "\\x", "=\\", "=.", '="', "\\\\"])
def test_long_name_before_a_mark_stays_as_it_is(behind: str) -> None:
    """Python before 3.11.5 took some of these marks for a part of the name."""
    line = f'secrets \\"{"z" * 253}{behind} is forbidden'
    assert redact(line) == line
    assert redact(f"{line}{'y' * 41}") == f"{line}{'y' * 41}"
