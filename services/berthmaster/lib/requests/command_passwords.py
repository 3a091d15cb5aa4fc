"""Finds passwords that programs take by a short flag: ``mysql -phunter2``, ``redis-cli -a x``.
Pure.

The same letter means something else to most programs (``tar -p``, ``mkdir -p``, ``ssh -p 22``), so
the rule depends on the program's name. Example: the second command of ``cd /x && sudo mysql -u root
-phunter2`` has the program ``mysql``. Its flag ``-p`` holds a password if a value follows without a
blank.

- A program is recognised where a shell starts one: first in a command, after ``--``, or after a
  program that runs others (``sudo``, ``env``, ``bash -c``, ``kubectl exec``).
- A reference to another value, such as ``-p"$DB_PASS"``, is no password.
"""

import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

_NO_VALUE: Final = re.compile(r"[$`{<%*]|<hidden>|\d+(?::\d+)+(?:/\w+)?\Z")  # ports, too
_ANY: Final = re.compile(r"\S")
_USER: Final = re.compile(r"[^\s:$]+:(?!\$)\S")  # user:password
_PASS: Final = re.compile(r"pass:(?!\$)\S")  # openssl's form of a password


class _Flag(NamedTuple):
    """A flag with a password."""

    names: re.Pattern[str]  # of the whole flag, with its dashes
    touching: bool = True  # the value may follow without a blank: -phunter2
    apart: bool = True  # the value may be the next word: -p hunter2
    value: re.Pattern[str] = _ANY
    after: str = ""  # only after this word: docker login -p, not docker run -p


_ONLY_TOUCHING: Final = (_Flag(re.compile("-p"), apart=False),)
_BOTH: Final = (_Flag(re.compile("-p")),)
_CAPITAL: Final = (_Flag(re.compile("-P")),)
_LOGIN: Final = (
    _Flag(re.compile("-p"), after="login"),
    _Flag(re.compile("--(?:src-|dest-)?creds=?"), value=_USER),
)
_PROGRAMS: Final = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlshow", "mysqlcheck"),
                *("mysqlpump", "mysqlslap", "mysqlsh", "mariadb", "mariadb-dump", "mariadb-admin"),
                *("mariadb-import", "mariadb-show", "mariadb-check", "7z", "7za", "7zr", "7zz"),
            ),
            _ONLY_TOUCHING,
        ),
        **dict.fromkeys(
            (
                *("sshpass", "mongo", "mongosh", "mongodump", "mongorestore", "mongoexport"),
                *("mongoimport", "mongostat", "mongotop", "rabbitmqadmin", "cypher-shell"),
            ),
            _BOTH,
        ),
        **dict.fromkeys(("zip", "unzip", "sqlcmd", "bcp"), _CAPITAL),
        **dict.fromkeys(("redis-cli", "redis-benchmark", "valkey-cli"), (_Flag(re.compile("-a")),)),
        **dict.fromkeys(
            ("ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldapwhoami", "ldappasswd"),
            (_Flag(re.compile("-w")),),
        ),
        **dict.fromkeys(
            ("docker", "podman", "nerdctl", "helm", "buildah", "skopeo", "oras", "crane", "az"),
            _LOGIN,
        ),
        # After letters of flags without a value: -sSu ada:hunter2.
        "curl": (
            _Flag(re.compile(r"-[\dfsSLkgivIGNOJRBjlnqZ#]*[uU]|--(?:proxy-)?user=?"), value=_USER),
        ),
        "smbclient": (_Flag(re.compile("-U|--user=?"), value=re.compile(r"[^\s%$]+%(?!\$)\S")),),
        "openssl": (_Flag(re.compile("-pass(?:in|out)?"), value=_PASS),),
    }
)
_RUNS_OTHERS: Final = frozenset(
    (
        *("sudo", "doas", "env", "time", "timeout", "nice", "ionice", "nohup", "exec", "command"),
        *("xargs", "stdbuf", "setsid", "flock", "watch", "parallel", "su", "runuser", "gosu"),
        *("sh", "bash", "dash", "ash", "zsh", "ssh", "sshpass", "chroot", "srun", "mpirun"),
        *("docker", "podman", "nerdctl", "kubectl", "apptainer", "singularity"),
        *("if", "then", "else", "elif", "while", "until", "do", "!", "{"),
    )
)
# A text with one of the programs contains one of these in lower case.
HINTS: Final = (
    *("mysql", "mariadb", "mongo", "redis-", "valkey-", "ldap", "zip", "7z", "sshpass", "sqlcmd"),
    *("bcp", "login", "creds", "curl", "openssl", "smbclient", "rabbitmq", "cypher-"),
)
_QUOTES: Final = str.maketrans("", "", "\"'\\")
_WORDS: Final = re.compile(r"[;&|()`\n]|[^\s,\[\];&|()`]+")
_ENDS: Final = frozenset(";&|()`\n")
_ASSIGNMENT: Final = re.compile(r"\w+=")


def password_at(words: Sequence[str]) -> int | None:
    """Return the index of the word with a password; None = no password."""
    for program, arguments in _calls(words):
        for at in arguments:
            for flag in _PROGRAMS[program]:
                if flag.after and flag.after not in words[arguments.start : at]:
                    continue
                if (holder := _holder(flag, words, at, arguments.stop)) is not None:
                    return holder
    return None


def password_in(text: str) -> bool:
    """Return whether a command in a text, such as a script, has a password."""
    plain = text.replace("\\n", "\n").translate(_QUOTES)
    return password_at(_WORDS.findall(plain)) is not None


def _calls(words: Sequence[str]) -> Iterator[tuple[str, range]]:
    """Yield each program of the table, with the range of its arguments."""
    program, first = "", 0
    starts, runs_others = True, False
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        if word in _ENDS or word == "--":
            if program:
                yield program, range(first, at)
            program, starts, runs_others = "", True, False
        elif (starts or runs_others) and (name in _PROGRAMS or name in _RUNS_OTHERS):
            if program:
                yield program, range(first, at)
            program, first = name if name in _PROGRAMS else "", at + 1
            starts, runs_others = False, name in _RUNS_OTHERS
        elif not _ASSIGNMENT.match(word):
            starts = False
    if program:
        yield program, range(first, len(words))


def _holder(flag: _Flag, words: Sequence[str], at: int, end: int) -> int | None:
    """Return the index of a flag's password, in the same word or in the next; None = no
    password.
    """
    found = flag.names.match(words[at])
    if found is None:
        return None
    if value := words[at][found.end() :]:
        return at if flag.touching and _is_password(flag, value) else None
    after = at + 1
    if flag.apart and after < end and words[after][:1] != "-":
        return after if _is_password(flag, words[after]) else None
    return None


def _is_password(flag: _Flag, value: str) -> bool:
    return not _NO_VALUE.match(value) and flag.value.match(value) is not None
