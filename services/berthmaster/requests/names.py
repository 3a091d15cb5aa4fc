"""How objects of Kubernetes are called. Pure."""

import re
from typing import Final

OBJECT: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*\Z"
)
OBJECT_WORDS: Final = "a name of Kubernetes (lower-case letters, digits, '-' and '.')"
