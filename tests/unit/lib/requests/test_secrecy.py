"""What is refused as a secret, what only resembles one, and what says how to name a Secret."""

import base64
import bz2
import gzip
import lzma
import time
from typing import Any

import msgspec
import pytest

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.workload import JobRequest, RunSpec, SecretKey
from berthmaster.lib.requests.secrecy import secret_fault
from berthmaster.lib.requests.validation import (
    cancel_request,
    cordon_request,
    job_request,
    job_verb_request,
    queue_setting,
)
from berthmaster.lib.runtime.redact import redact


def _gzip(text: bytes) -> bytes:
    """Return the same bytes at every time of day, so that each worker names the cases alike."""
    return gzip.compress(text, mtime=0)


HEX = "9f86d081884c7d659a2feaa0"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"
SEED = "SUA" + "B2" * 27 + "C"
DER = b"\x30\x82\x04\xbd\x02\x01\x00\x30\x0d\x06\x09" + bytes(range(80))
IN_URL = "a password in a URL"
OF_HEADER = "a token of a header"
IN_BASE64 = "a secret in base64"
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
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", BY_NAME),
        ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE", "an AWS key"),
        ("DB_PASS", "hunter2", BY_NAME),
        ("DBPASS", "hunter2", BY_NAME),
        ("PGPASSWORD", "hunter2", BY_NAME),
        ("MYSQL_PWD", "hunter2", BY_NAME),
        ("FTP_PW", "hunter2", BY_NAME),
        ("PASS", "hunter2", BY_NAME),
        ("dbPassword", "hunter2", BY_NAME),
        ("client-secret", "hunter2", BY_NAME),
        ("SECRET_KEY", "hunter2", BY_NAME),
        ("APP_SECRET_2", "hunter2", BY_NAME),
        ("REDISCLI_AUTH", HEX, BY_BOTH),
        ("accessToken", HEX, BY_BOTH),
        ("GITHUB_PAT", HEX, BY_BOTH),
        ("SESSION_COOKIE", HEX, BY_BOTH),
        ("DATABASE_URL", "postgres://ada:hunter2@db:5432/x", IN_URL),
        ("DATABASE_URL", "postgresql+psycopg://ada:hunter%2F2@db/x?sslmode=require", IN_URL),
        ("REDIS", "redis://:hunter2@cache/0", IN_URL),
        ("X", "see https://ada:hunter2@git.example.com/repo.git for more", IN_URL),
        ("X", "https://ada%3Ahunter2@git.example.com/repo.git", IN_URL),
        ("X", f"https://{HEX}@git.example.com/repo.git", IN_URL),
        ("X", "https://h/?next=https%3A%2F%2Fada%3Ahunter2%40db%2Fx", IN_URL),
        ("DSN", "ada:hunter2@tcp(db:3306)/x", IN_URL),
        ("X", "https://store/x?sig=" + HEX + "&se=2026", BY_BOTH),
        ("X", "Server=db;User=ada;Password=hunter2;", BY_NAME),
        ("X", "DefaultEndpointsProtocol=https;AccountKey=" + "a1B2" * 21 + "==;", BY_BOTH),
        ("X", '{"db": {"password": "hunter2"}}', BY_NAME),
        ("X", '{\\"clientSecret\\": \\"hunter2\\"}', BY_NAME),
        ("X", "user: ada\npassword: hunter2\n", BY_NAME),
        ("X", f"Authorization: Bearer {HEX}", OF_HEADER),
        ("X", "bearer   abcdefghijkl", OF_HEADER),
        ("X", "Authorization: Basic YWRhOmh1bnRlcjI=", OF_HEADER),
        ("X", '"authorization": "token abcdefgh"', OF_HEADER),
        ("X", base64.b64encode(PEM.encode()).decode(), IN_BASE64),
        ("X", base64.urlsafe_b64encode(b"x" + PEM.encode()).decode().rstrip("="), IN_BASE64),
        ("X", "data:," + base64.b64encode(b"xx" + PEM.encode()).decode(), IN_BASE64),
        ("X", "/etc/" + base64.b64encode(PEM.encode()).decode(), IN_BASE64),
        ("X", base64.encodebytes(b"a: b\n" * 30 + PEM.encode()).decode(), IN_BASE64),
        ("X", base64.b64encode(base64.b64encode(PEM.encode())).decode(), IN_BASE64),
        ("X", base64.b64encode(DER).decode(), IN_BASE64),
        ("X", base64.b64encode(_gzip(PEM.encode())).decode(), IN_BASE64),
        ("X", "H4sI/" + base64.b64encode(_gzip(f"a: {JWT}".encode())).decode(), IN_BASE64),
        ("X", base64.b64encode(base64.b64encode(_gzip(PEM.encode()))).decode(), IN_BASE64),
        ("X", base64.b64encode(bz2.compress(PEM.encode() * 9)).decode(), IN_BASE64),
        ("X", base64.b64encode(lzma.compress(PEM.encode())).decode(), IN_BASE64),
        ("X", _gzip(PEM.encode()).hex(), IN_BASE64),
        ("X", PEM.encode().hex(), IN_BASE64),
        ("X", base64.b64encode(f"user:\n  token: {JWT}\n".encode()).decode(), IN_BASE64),
        ("X", "PuTTY-User-Key-File-3: ssh-rsa\nPrivate-Lines: 14\nAAAA", "a private key of PuTTY"),
        ("X", PEM.replace("PRIVATE", "OPENSSH PRIVATE"), "a private key"),
        ("X", PEM.replace("KEY-", "KEY BLOCK-").replace("PRIVATE", "PGP PRIVATE"), "a private key"),
        ("X", PEM.replace(" ", "%20"), "a private key"),
        ("X", f"user:{JWT}", "a JSON Web Token"),
        ("X", "nvapi-" + "a1B2" * 9, "an access token"),
        ("X", "AIza" + "a1B2" * 9, "an access token"),
        ("X", "sk_live_" + "a1B2" * 9, "an access token"),
        ("X", "hvs." + "a1B2" * 9, "an access token"),
        ("X", "https://hooks.slack.com/services/T0/B0/" + "a1B2" * 6, "an access token"),
        ("CONFIG", f"key: |\n{PEM}", "a private key"),
        ("NATS", SEED, "an nkey seed"),
        ("GIT", "ghp_" + "a1B2" * 9, "an access token"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(name: str, value: str, kind: str) -> None:
    refusal = job_request(encode(JobRequest(id="a", run=RunSpec(env={"A": "1", name: value}))))
    assert refusal == Refusal(
        code="invalid",
        field=f"run.env.{name}" if "-" not in name else f'run.env["{name}"]',
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
        ("PWD", "work"),
        ("RENDER_PASS", "shadow"),
        ("BYPASS", "proxy"),
        ("COMPASS", "north"),
        ("DB_PASS", "$(FROM_SECRET)"),
        ("DB_PASS", "${FROM_SECRET}"),
        ("SECRET_NAME", "db-credentials"),
        ("SECRETS_STORE", "vault"),
        ("DATABASE_URL", "postgres://ada:$(DB_PASS)@db/x"),
        ("DATABASE_URL", "postgres://ada@db/x"),
        ("DATA", "abfss://training-data-2024@account.dfs.core.windows.net/x"),
        ("REPO", "ssh://git@github.com/a/b.git"),
        ("URL", "http://host:80/path?mail=ada@example.com"),
        ("NOTE", "ada@example.com, grace@example.com"),
        ("IMAGE", f"repo/train:1.2@sha256:{HEX}"),
        ("HEADER", "Authorization: Bearer $(TOKEN)"),
        ("HEADER", "Authorization: Bearer ${TOKEN}"),
        ("CA", base64.b64encode(b"-----BEGIN CERTIFICATE-----\n" + bytes(range(99))).decode()),
        ("BLOB", base64.b64encode(bytes(range(256)) * 9).decode()),
        (
            "MANIFEST",
            base64.b64encode(_gzip(b"kind: ConfigMap\ndata: {}\n" * 9)).decode(),
        ),
        ("HALF", base64.b64encode(_gzip(bytes(range(256)))).decode()[:80]),
        ("PATHS", "/opt/" + "lib/python3/site-packages/" * 9),
        ("ARGS", "--max-tokens=512 --pad-token=[PAD] --seed=42 --key=id"),
        ("PYTHON", "connect(user=name, password=pw)"),
        ("PYTHON", "password = os.environ['DB_PASSWORD']"),
        ("PYTHON", "def f(password: str, token: str = None): ..."),
        ("SHELL", "docker run --user app:app -u ada:ada train && tar -cp a && ssh -p 22 host"),
        ("SHELL", "export DB_PASSWORD=$(cat /run/secrets/db) && train"),
    ],
)
def test_what_only_resembles_a_secret_is_taken(name: str, value: str) -> None:
    assert secret_fault(JobRequest(id="a", run=RunSpec(env={name: value}))) is None


PEM64 = base64.b64encode(PEM.encode()).decode()


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"labels": {"db-password": "hunter2"}}, 'labels["db-password"]'),
        ({"labels": {"note": f"Bearer {HEX}"}}, "labels.note"),
        ({"labels": {"ghp_" + "a1B2" * 9: "x"}}, "labels"),
        ({"cluster_labels": {"auth": "https://ada:pw@host/"}}, "cluster_labels.auth"),
        ({"data": ["s3://ada:pw@bucket/x"]}, "data[0]"),
        ({"run": {"image": "https://ada:pw@registry/train"}}, "run.image"),
        ({"run": {"command": ["sh", "-c", "DB_PASS=hunter2 train"]}}, "run.command[2]"),
        ({"run": {"args": ["--password=hunter2"]}}, "run.args[0]"),
        ({"run": {"args": ["--db-password", "hunter2"]}}, "run.args[1]"),
        ({"run": {"args": ["-u", "ada:hunter2"]}}, "run.args[1]"),
        ({"run": {"args": ["mysql --password hunter2"]}}, "run.args[0]"),
        ({"run": {"args": ["-H", "X-Api-Key: " + HEX]}}, "run.args[1]"),
        ({"run": {"command": ["mysql", "-u", "root", "-phunter2"]}}, "run.command[3]"),
        ({"run": {"command": ["redis-cli"], "args": ["-a", "hunter2"]}}, "run.args[1]"),
        ({"run": {"command": ["sh", "-c", "mysql -phunter2 <a.sql"]}}, "run.command[2]"),
        ({"run": {"args": [PEM64]}}, "run.args[0]"),
        ({"run": {"env": {f"A{JWT}": "1"}}}, "run.env"),
        ({"pod_sets": [{"node_labels": {"x": JWT}}]}, "pod_sets[0].node_labels.x"),
        ({"pod_sets": [{"tolerations": [{"key": "a", "value": JWT}]}]}, "tolerations[0].value"),
        ({"runtime": {"name": "r", "parameters": {"password": "hunter2"}}}, "parameters.password"),
        ({"runtime": {"name": "r", "parameters": {"x": "redis://:pw@h"}}}, "parameters.x"),
    ],
)
def test_secret_in_any_text_of_a_request_is_refused(fields: dict[str, Any], where: str) -> None:
    refusal = job_request(msgspec.json.encode({"id": "a", **fields}))
    assert isinstance(refusal, Refusal)
    assert where in refusal.field
    assert "no secret (this is" in refusal.expected
    assert "hunter2" not in str(refusal)


@pytest.mark.parametrize(
    "read",
    [
        lambda told: cancel_request(msgspec.json.encode({"id": "a", "reason": told})),
        lambda told: job_verb_request("hold", msgspec.json.encode({"id": "a", "reason": told})),
        lambda told: job_verb_request(
            "checkpointed", msgspec.json.encode({"id": "a", "step": 1, "uri": told})
        ),
        lambda told: cordon_request(msgspec.json.encode({"cluster": "c", "reason": told})),
        lambda told: queue_setting(msgspec.json.encode({"queue": "q", "set_by": told})),
    ],
)
def test_secret_in_the_text_of_any_verb_is_refused(read: Any) -> None:
    for secret in (f"Bearer {HEX}", "s3://ada:hunter2@bucket", "DB_PASS=hunter2", PEM64):
        refusal = read(secret)
        assert isinstance(refusal, Refusal)
        assert "no secret (this is" in refusal.expected
        assert refusal.value == '"<hidden>"'


@pytest.mark.parametrize(
    "text",
    [
        *("a" * 200_000, "key" * 60_000, "a=" * 100_000, "a:" * 100_000, "password=" * 20_000),
        *(
            " " * 200_000,
            "--token " * 25_000,
            "A" + " " * 200_000,
            "://a" * 50_000,
            "://a:" * 40_000,
        ),
        *("-----BEGIN PRIVATE " * 9_000, "-----BEGIN" * 20_000, "bearer " * 25_000, "eyJ" * 60_000),
        *(
            "https://" + "a1" * 90_000,
            "a1B2" * 50_000,
            "https%3A%2F%2F%40" * 10_000,
            "%25" * 60_000,
            "a1B2\n" * 40_000,
            "x" * 39 + "\n" + "y" * 9,
        ),
        *(
            base64.b64encode(_gzip(b"a1B2" * 900_000)).decode() * 40,
            "mysql -p " * 20_000,
        ),
        *("bash " * 40_000, "docker login " * 15_000 + "-p x", "-u a:b " * 28_000 + "docker x"),
        *("authorization:" * 14_000, "Y" * 40 + "\\n" * 99_000, "a@tcp(" * 30_000, '"\\' * 90_000),
    ],
)
def test_text_that_is_built_to_cost_time_is_looked_at_quickly(text: str) -> None:
    began = time.process_time()
    secret_fault(
        JobRequest(id="a", run=RunSpec(env={"PASS": "$(X)", "A": text}, args=("-x", text)))
    )
    redact(text)
    assert time.process_time() - began < 5  # measured: below 0.3 s


def test_a_secret_among_the_words_of_the_command_is_refused_where_it_stands() -> None:
    run = RunSpec(command=("run",), args=("--fast", f"--auth={JWT}"))
    refusal = secret_fault(JobRequest(id="a", run=run))
    assert refusal is not None
    assert (refusal.field, refusal.value) == ("run.args[1]", '"<hidden>"')
    assert "as a variable in run.secret_env" in refusal.expected


def test_a_named_secret_is_taken_once() -> None:
    wandb = SecretKey(name="wandb", key="api-key")
    run = RunSpec(secret_env={"WANDB_API_KEY": wandb})
    assert secret_fault(JobRequest(id="a", run=run)) is None
    run = RunSpec(env={"A": "1"}, secret_env={"A": wandb})
    twice = secret_fault(JobRequest(id="a", run=run))
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
