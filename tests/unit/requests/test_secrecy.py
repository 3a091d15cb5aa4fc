"""What is refused as a secret, what only resembles one, and what says how to name a Secret."""

import msgspec
import pytest

from berthmaster.messages.api import Refusal
from berthmaster.messages.families import encode
from berthmaster.messages.workload import JobRequest, RunSpec, SecretKey
from berthmaster.requests.secrecy import secret_fault
from berthmaster.requests.validation import job_request

HEX = "9f86d081884c7d659a2feaa0"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"
SEED = "SUA" + "B2" * 27 + "C"
BY_NAME = "a secret by its name"
BY_BOTH = "a secret by its name and its looks"


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("DB_PASSWORD", "hunter2", BY_NAME),
        ("password", "correct horse battery staple", BY_NAME),
        ("PASSWORD_OF_DB", "hunter2", BY_NAME),
        ("CLIENT_SECRET", "s3", BY_NAME),
        ("SSH_PASSPHRASE", "open sesame", BY_NAME),
        ("WANDB_API_KEY", HEX, BY_BOTH),
        ("OPENAI_APIKEY", HEX, BY_BOTH),
        ("HUB_TOKEN", HEX, BY_BOTH),
        ("token", HEX, BY_BOTH),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", BY_BOTH),
        ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE", "an AWS key"),
        ("X", f"user:{JWT}", "a JSON Web Token"),
        ("CONFIG", f"key: |\n{PEM}", "a private key"),
        ("NATS", SEED, "an nkey seed"),
        ("GIT", "ghp_" + "a1B2" * 9, "an access token"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(name: str, value: str, kind: str) -> None:
    refusal = job_request(encode(JobRequest(id="a", run=RunSpec(env={"A": "1", name: value}))))
    assert refusal == Refusal(
        code="invalid",
        field=f"run.env.{name}",
        value='"<hidden>"',
        expected=f'no secret (this is {kind}): put it into a Secret "<tenant>.NAME" where the pods '
        f'run, and name it as run.secret_env["{name}"]: {{"name": "NAME", "key": "KEY"}}',
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EOS_TOKEN", "<|end_of_text_2024|>"),
        ("PAD_TOKEN", "[PAD]"),
        ("MAX_TOKENS", "512"),
        ("SORT_KEY", "timestamp"),
        ("PARTITION_KEY", "customer_identifier"),
        ("SEED", "1234567890123456789"),
        ("SSH_PUBLIC_KEY", "AAAAC3NzaC1lZDI1NTE5AAAAIJ"),
        ("API_KEY_FILE", f"/run/secrets/{HEX}"),
        ("TOKEN", "/var/run/secrets/token-2024-11-23"),
        ("DB_PASSWORD", ""),
        ("DB_PASSWORD", "/run/secrets/db"),
        ("DB_PASSWORD", "$(FROM_SECRET)"),
        ("DB_PASSWORD_FILE", "secrets/db"),
        ("PASSWORD_MIN_LENGTH", "eight"),
        ("ALLOW_EMPTY_PASSWORD", "yes"),
        ("RUN_HASH", HEX),
        ("DIGEST", f"sha256:{HEX}"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MONKEY", HEX),
    ],
)
def test_what_only_resembles_a_secret_is_taken(name: str, value: str) -> None:
    assert secret_fault(RunSpec(env={name: value})) is None


def test_a_secret_among_the_words_of_the_command_is_refused_where_it_stands() -> None:
    refusal = secret_fault(RunSpec(command=("run",), args=("--fast", f"--auth={JWT}")))
    assert refusal is not None
    assert (refusal.field, refusal.value) == ("run.args[1]", '"<hidden>"')
    assert "as a variable in run.secret_env" in refusal.expected


def test_a_named_secret_is_taken_once() -> None:
    wandb = SecretKey(name="wandb", key="api-key")
    assert secret_fault(RunSpec(secret_env={"WANDB_API_KEY": wandb})) is None
    twice = secret_fault(RunSpec(env={"A": "1"}, secret_env={"A": wandb}))
    assert twice is not None
    assert (twice.field, twice.expected) == (
        "run.secret_env.A",
        "a name that run.env does not have",
    )


def test_of_several_secrets_the_one_that_cannot_be_is_named() -> None:
    keys = {"A": {"name": "wandb", "key": "x"}, "B": {"name": "other.tenant", "key": "x"}}
    body = msgspec.json.encode({"id": "a", "run": {"secret_env": keys}})
    refusal = job_request(body)
    assert isinstance(refusal, Refusal)
    assert (refusal.field, refusal.value) == ("run.secret_env.B.name", '"other.tenant"')
