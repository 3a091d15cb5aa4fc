"""Reasons of a refused login, by the client's next step.

::

    LoginError
    ├── Refused       this token is not accepted, another token may be
    └── Unavailable   the issuer cannot be asked now, the same token may be accepted later

No text here has a token or a part of a token.
"""


class LoginError(Exception):
    """The login was not accepted."""


class Refused(LoginError):
    """The token was refused. The text gives the fault."""


class Unavailable(LoginError):
    """The issuer cannot be asked. The text gives the reason."""
