"""Secrets do not belong in a request, which is kept for years and shown to whoever sees the job.

Pure. What looks like one is refused, with the way to name a Secret of Kubernetes instead, whose
value only the pods get. Two rules, both meant to err rarely: a value that is known by its looks,
and a value that could be a secret under a name that says so.
"""

import re
from typing import Final

from berthmaster.messages.api import Refusal
from berthmaster.messages.explain import Step, invalid
from berthmaster.messages.workload import RunSpec
from berthmaster.runtime.redact import HIDDEN, secret_in

_SUSPECT: Final = ("PASS", "SECRET", "TOKEN", "KEY", "CREDENTIAL", "SEED")  # in names
# Their values are secrets, unless they are none at all or only say where or whether.
_SURE: Final = re.compile(
    r"(?i)(?:SECRET|PASSWD|PASSPHRASE|PASSWORD)\Z|PASSWORD(?!.*_(?:FILE|PATH|NAME|LENGTH|POLICY)\Z)"
)
_NOTHING: Final = re.compile(r"(?i)(?:true|false|yes|no|none|null|\d{0,5}|\.{0,2}/.*|\$\(\w+\))\Z")
# A key may sort and a token end a sentence: only a value that no person would think up is one.
_PERHAPS: Final = re.compile(r"(?i)(?:^|_)(?:TOKEN|(?:API)?KEY|CREDENTIALS?|SEED)\Z")
_PUBLIC: Final = re.compile(r"(?i)PUBLIC")
_MADE_UP: Final = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])[\w.~+/=:-]{16,}\Z")


def secret_fault(run: RunSpec) -> Refusal | None:
    """The first secret in it, or the first variable named twice. The value is never repeated."""
    words = "\0".join((*run.env.values(), *run.command, *run.args))
    names = "\0".join(run.env).upper()
    if secret_in(words) or any(part in names for part in _SUSPECT):  # hardly ever
        fault = _first_secret(run)
        if fault is not None:
            return fault
    for name in run.secret_env:
        if name in run.env:
            return invalid(["run", "secret_env", name], name, "a name that run.env does not have")
    return None


def _first_secret(run: RunSpec) -> Refusal | None:
    for name, value in run.env.items():
        if kind := secret_in(value) or _by_name(name, value):
            return _refused(["run", "env", name], kind, f' as run.secret_env["{name[:64]}"]')
    for field, words in (("command", run.command), ("args", run.args)):
        for at, word in enumerate(words):
            if kind := secret_in(word):
                return _refused(["run", field, at], kind, " as a variable in run.secret_env")
    return None


def _by_name(name: str, value: str) -> str:
    if _SURE.search(name) and not _NOTHING.match(value):
        return "a secret by its name"
    perhaps = _PERHAPS.search(name) and not _PUBLIC.search(name)
    if perhaps and not _NOTHING.match(value) and _MADE_UP.match(value):
        return "a secret by its name and its looks"
    return ""


def _refused(path: list[Step], kind: str, where: str) -> Refusal:
    right = (
        f'no secret (this is {kind}): put it into a Secret "<tenant>.NAME" where the pods run, and '
        f'name it{where}: {{"name": "NAME", "key": "KEY"}}'
    )
    return invalid(path, HIDDEN, right)
