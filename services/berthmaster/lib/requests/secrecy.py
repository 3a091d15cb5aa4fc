"""Refuses secrets in a request, which is stored for years and visible to all users who see the job.
Pure.

A request with a likely secret is refused. The refusal explains how to name a Kubernetes Secret
instead, whose value only the pods get. Every text of every request is checked: variables, words of
the command, labels, reasons. Three rules, each with few false positives:

1. A recognised value (lib/runtime/redact.py): keys, tokens, a password in a URL.
2. A possible secret under the name of one. The name is a variable's or a label's, or in the text:
   DB_PASS=hunter2, --password hunter2, {"clientSecret": "hunter2"}.
3. A value after a short flag of a program that takes a password there: mysql -phunter2.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import Step, invalid
from berthmaster.lib.messages.workload import JobRequest, RunSpec
from berthmaster.lib.requests import command_passwords
from berthmaster.lib.runtime.redact import HIDDEN, may_hold_secret, secret_in

# Each name of a secret, and each flag with one after it, contains one of these in lower case.
_HINTS: Final = (
    *("pass", "pwd", "_pw", "-pw", '"pw', "ppw", "secret", "token", "key", "cred", "seed", "auth"),
    *("cookie", "session", "sig", "_pat", "-pat", '"pat', '"-u"', "user"),
    *command_passwords.HINTS,
)
_NO_TEXT: Final = (int, float, bool)
_Found = tuple[tuple[Step, ...], str]  # a path, and the kind of secret there
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-.]")  # between words of a name
# Values under these names are secrets, unless empty, a location or a yes or no.
_SURE: Final = re.compile(
    r"(?:SECRETS?(?:_(?:ACCESS_)?KEY(?:_BASE)?|_TOKEN|_VALUE)?|PASSW(?:OR)?D|PASSPHRASE|PASSCODE)"
    r"(?:_?\d+)?\Z"
    r"|(?:^|_|DB|USER|ROOT|ADMIN|SMTP|MYSQL|PG|REDIS|LDAP|HTTP|PROXY|STORE|KEY)(?:PASS|PWD|PW)(?:_?\d+)?\Z"
    r"|PASSWORD(?!.*_(?:FILE|PATH|DIR|NAME|LENGTH|POLICY|HASHER|PROMPT)\Z)"
)
_NO_PASS: Final = re.compile(
    r"(?:^|_)(?:RENDER|FIRST|SECOND|HIGH|LOW|BAND|ALL|MULTI|SINGLE|ONE|TWO|FORWARD|BACKWARD|FAST"
    r"|MAX|MIN|NUM|OLD|LAST)_?(?:PASS|PWD)\Z|^PWD\Z"
)
_NOTHING: Final = re.compile(
    r"(?i)(?:true|false|yes|no|none|null|\d{0,5}|(?:file:|\.{0,2}/).*|\$\(\w+\)|\$\{?\w+\}?|\{\{[^}]*\}\}"
    r"|\*+|<hidden>)\Z"
)
# A key may be a sort key, and a token may end a sentence. So a value under these names is a secret
# only if it looks generated.
_PERHAPS: Final = re.compile(
    r"(?:^|_)(?:\w*SECRET\w*|\w*TOKENS?|\w*(?:ACCESS|API|ACCOUNT|SIGNING)_?KEYS?|KEYS?(?:_ID|_BASE)?"
    r"|CREDENTIALS?|CREDS?|SEED|AUTH|AUTHORIZATION|PAT|COOKIE|SESSION(?:_ID|_KEY)?|SIG|SIGNATURE)"
    r"(?:_?\d+)?\Z"
)
_PUBLIC: Final = re.compile(r"PUBLIC")
_MADE_UP: Final = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])[\w.~+/=:%-]{16,}\Z")
# A name and its value within a text. The value is a lookahead, as the next pair may be inside.
_PAIR: Final = re.compile(
    r"(?<![\w.-])(?=[\w.-]{0,64}?(?i:pass|pwd|pw|secret|token|key|cred|seed|auth|cookie|sess|sig|pat))"
    r"([\w.-]++)([\"'\\]*+)\s*+([=:])\s*+(?=([\"'\\]*+)([^\s\"'\\&,;)}\]|]{1,512})(.?))"
)
_FLAG: Final = re.compile(r"(?<!\S)--?([\w.-]++)\s++(?=(?!-)[\"'\\]*+([^\s\"'\\;|&]{1,512}))")
_WHOLE: Final = re.compile(r"-{0,2}([\w.-]+)=(\S+)\Z")
# Texts after a name in source code that are no values: a type, a variable, a call.
_TYPE: Final = re.compile(r"(?i)(?:str|string|bytes|any|text|optional|required|object|int|type)\b")
_CODE: Final = re.compile(
    r"(?:os|sys|self|args|cfg|config|settings|opts?|options|env|environ|request|input|getpass)"
    r"[.\[(]|\w+[(\[]|[$`{\[(<%]"
)
_NAME: Final = re.compile(r"[A-Za-z_]+\Z")
_USER: Final = re.compile(r"[^\s:$]*[A-Za-z][^\s:]*:(?!\$)[^\s:/]\S*\Z")
# Tools whose -u and --user take a user and a group: docker run -u app:app.
_OWNER: Final = re.compile(r"\b(?:docker|podman|nerdctl|kubectl|chroot|sudo|systemd-run)\s")
BY_PROGRAM: Final = "a password of a command"
BY_USER: Final = "a user with a password"


def secret_fault(request: msgspec.Struct) -> Refusal | None:
    """Return a refusal of the first secret in a request, or of the first variable set twice. The
    refusal never contains the value.
    """
    text = msgspec.json.encode(request).decode()
    found = _secret((), request) if _may_name(text) or may_hold_secret(text) else None
    if found is not None:
        return _refused(*found, request)
    if isinstance(request, JobRequest):
        for name in request.run.secret_env:
            if name in request.run.env:
                path = ("run", "secret_env", name)
                return invalid(path, name, "a name that run.env does not have")
    return None


def _may_name(text: str) -> bool:
    lower = text.lower()
    for hint in _HINTS:  # noqa: SIM110 # any() takes twice as long
        if hint in lower:
            return True
    return False


def _secret(path: tuple[Step, ...], value: object) -> _Found | None:
    """Return the path of the first secret, and its kind."""
    found = None
    if isinstance(value, str):
        kind = secret_in(value) or _named_within(value)
        return (path, kind) if kind else None
    if isinstance(value, RunSpec):
        found = _in_command(path, value)
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            each = getattr(value, field)
            if each and type(each) not in _NO_TEXT:
                found = found or _secret((*path, field), each)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            found = found or _secret_member(path, str(name), each)
    elif isinstance(value, tuple | list):
        for at, each in enumerate(value):
            found = found or _secret((*path, at), each)
            if at and not found and isinstance(each, str):
                kind = _by_flag(value[at - 1], each)
                if kind == BY_USER and _OWNER.search(" ".join(map(str, value[:at]))):
                    kind = ""
                found = ((*path, at), kind) if kind else None
    return found


def _in_command(path: tuple[Step, ...], run: RunSpec) -> _Found | None:
    """Return path and kind of a password after a flag of the container's program."""
    at = command_passwords.password_at([*run.command, *run.args])
    if at is None:
        return None
    field, at = ("command", at) if at < len(run.command) else ("args", at - len(run.command))
    return (*path, field, at), BY_PROGRAM


def _secret_member(path: tuple[Step, ...], name: str, value: object) -> _Found | None:
    """Return path and kind of a secret in a map's member. The name may be a secret or announce
    one.
    """
    if kind := secret_in(name):
        return path, kind
    found = _secret((*path, name), value)
    if found is None and isinstance(value, str) and (kind := _by_name(name, value)):
        return (*path, name), kind
    return found


def _by_name(name: str, value: str) -> str:
    """Return the kind of secret that a value is under this name; "" = none."""
    if not _may_name(f'"{name}"') or _NOTHING.match(value):
        return ""
    name = _WORD.sub("_", name.rpartition("/")[2][-128:]).upper()
    if _SURE.search(name) and not _NO_PASS.search(name):
        return "a secret by its name"
    if _PERHAPS.search(name) and not _PUBLIC.search(name) and _MADE_UP.match(value):
        return "a secret by its name and its looks"
    return ""


def _by_flag(flag: object, value: str) -> str:
    """Return the kind of secret that follows a flag of a command: --password hunter2, -u
    ada:hunter2.
    """
    if not isinstance(flag, str) or flag[:1] != "-" or "=" in flag or value[:1] == "-":
        return ""
    if flag in ("-u", "--user", "--proxy-user") and _USER.match(value):
        return BY_USER
    return _by_name(flag.lstrip("-"), value)


def _named_within(text: str) -> str:
    """Return the kind of secret after its name within a text; "" = none."""
    if not _may_name(text):
        return ""
    if (whole := _WHOLE.match(text)) and (kind := _by_name(whole[1], whole[2])):
        return kind
    for found in _PAIR.finditer(text):
        name, _, sign, quote, value, after = found.groups()
        if (kind := _by_name(name, value)) and not _is_code(name, sign, quote, value, after):
            return kind
    owner = _OWNER.search(text)
    for found in _FLAG.finditer(text):
        kind = _by_flag(f"-{found[1]}", found[2])
        if kind and not (kind == BY_USER and owner and owner.start() < found.start()):
            return kind
    return BY_PROGRAM if command_passwords.password_in(text) else ""


def _is_code(name: str, sign: str, quote: str, value: str, after: str) -> bool:
    """Return whether a value in a text is a type, a variable or a call in source code:
    password=args.pw.
    """
    if quote:
        return False
    if _CODE.match(value) or (sign == ":" and _TYPE.match(value)):
        return True
    return name.islower() and after in (",", ")") and _NAME.match(value) is not None


def _refused(path: tuple[Step, ...], kind: str, request: msgspec.Struct) -> Refusal:
    right = f"no secret (this is {kind}), as what is stored stays readable"
    if isinstance(request, JobRequest):
        as_variable = f'["{str(path[2])[:64]}"]' if path[:2] == ("run", "env") and path[2:] else ""
        right = (
            f'no secret (this is {kind}): put it into a Secret "<tenant>.NAME" where the pods run, '
            f"and name it as {'' if as_variable else 'a variable in '}run.secret_env{as_variable}"
            ': {"name": "NAME", "key": "KEY"}'
        )
    return invalid(path, HIDDEN, right)
