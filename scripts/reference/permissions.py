"""The page of permissions on the bus, from lib/access/permissions.py."""

from collections.abc import Mapping, Sequence
from typing import Final

from berthmaster.lib.access import permissions
from scripts.reference.markdown import MADE_BY

HEAD: Final = """# Bus permissions

{made_by}

Each user of the bus has an account, and may publish and subscribe to the subjects below, nothing
else. `JS.API.…` are requests to JetStream. Examples use the tenant `acme` and the cluster `berlin`.
[Security](../concepts/security.md) explains the accounts.
"""
PARTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(permissions.PART_ROLES, "berlin"),
    **dict.fromkeys(permissions.OF_TENANTS, "acme"),
}
GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "People and programs": [
        *(f"{role}.{PARTS[role]}" for role in permissions.OF_TENANTS),
        *(role for role in permissions.WHOLE_ROLES if role not in permissions.SERVICES),
    ],
    "In a worker cluster": [
        f"{role}.{part}" for role, part in PARTS.items() if role not in permissions.OF_TENANTS
    ],
    "Services": list(permissions.SERVICES),
}


def page() -> str:
    """Return the page: a list of subjects for each user."""
    parts = [HEAD.format(made_by=MADE_BY)]
    for title, users in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += map(_user, users)
    return "\n".join(parts)


def _user(user: str) -> str:
    grants = permissions.grants(user)
    lines = [f"### {user}\n", f"Account `{permissions.account_of(user)}`.\n", "```"]
    lines += [f"publish    {subject}" for subject in grants.publish]
    lines += [f"subscribe  {subject}" for subject in grants.subscribe]
    return "\n".join([*lines, "```", ""])
