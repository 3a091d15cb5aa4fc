"""What can keep somebody out, named by what who asks can do next.

::

    LoginError
    ├── Refused       this token is not good for it; another one may be
    └── Unavailable   whoever would know cannot be asked now; the same token may be good later

No text here holds a token or a part of one.
"""


class LoginError(Exception):
    """Nobody was let in."""


class Refused(LoginError):
    """The token is not believed; the text says what is wrong with it."""


class Unavailable(LoginError):
    """The issuer cannot be asked; the text says why."""
