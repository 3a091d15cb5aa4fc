"""A kubeconfig's context as kubernetes_asyncio's Configuration, kept fresh.

The library's loader decides how to authenticate, and sets server, TLS and proxy. Whatever is
different here mends one of its faults; the reason stands beside it. Credentials change (mounted
tokens are renewed, plugins hand out short ones): they are looked at before each
request, and kept for as long as they may be.
"""

import asyncio
import base64
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import msgspec

from berthmaster.lib.kube.certificate_files import in_memory
from berthmaster.lib.kube.config import Access, read_token
from berthmaster.lib.kube.errors import BadConfig
from berthmaster.lib.kube.library import Configuration, KubeConfigLoader
from berthmaster.lib.kube.plugin import LIMIT_S, Plugin, PluginFailed

FILE_TOKEN_S: Final = 60.0  # the kubelet renews a token at 80 % of its hour; client-go: 1 minute
EARLY_S: Final = 30.0  # so long before its end a credential is fetched anew
NAME: Final = "it"


class Loader(KubeConfigLoader):
    """The credentials and the configuration of one access."""

    cert_file: str | None
    key_file: str | None

    def __init__(
        self,
        access: Access,
        *,
        now: Callable[[], float] = time.time,
        plugin_limit_s: float = LIMIT_S,
    ) -> None:
        """``now``: seconds since 1970."""
        super().__init__(_kubeconfig(access), config_base_path="")
        self._access = access
        self._now = now
        self._plugin_limit_s = plugin_limit_s
        self._lock = asyncio.Lock()
        self._answers = 0
        self._refused = False  # the server does not take what we have any more
        self._due_s = 0.0  # of the clock, or of the loop for a file; 0 = never
        self.token = ""  # a whole header; "" = none
        self.certificate = access.pair  # what is to be shown from now on; nothing twice = none

    @contextmanager
    def configuration(self) -> Iterator[Configuration]:
        """All that the library needs to connect; the files that it names last for the block."""
        found = Configuration()
        # kubectl does not ask for it either; authorities of older clusters lack what it demands.
        found.disable_strict_ssl_verification = True
        with ExitStack() as files:
            # Set here, they are taken as they are (see certificate_files.py).
            self.cert_file = self.key_file = None
            if self.certificate[0]:
                self.cert_file = files.enter_context(in_memory(self.certificate[0]))
                self.key_file = files.enter_context(in_memory(self.certificate[1]))
            if self._access.ca:
                authority = files.enter_context(in_memory(self._access.ca))
                self._config.value["clusters"][0]["cluster"]["certificate-authority"] = authority
            self._load_cluster_info()
            self._set_config(found)
            yield found

    async def refresh(self, *, refused: bool = False) -> None:
        """See that ``token`` and ``certificate`` are those of now; ``refused``: the server did not
        take them, so ask for others. The library has a task of its own for this, for plugins alone,
        which ends with the first error. Raises BadConfig."""
        before = self._answers
        if not refused and before and not self._is_due():
            return
        async with self._lock:
            # Many requests may be refused at once; the first to come here asks for all of them.
            if before == self._answers:
                self._refused = refused
                await self._load_authentication()
                self._answers += 1

    def _is_due(self) -> bool:
        clock = asyncio.get_running_loop().time if self._access.user.token_file else self._now
        return bool(self._due_s) and clock() > self._due_s

    def _load_user_token(self) -> bool:
        """The library reads a file once, whatever its size, takes its line end for a part of the
        token, and prefers an old token beside it; kubectl prefers the file."""
        if not self._access.user.token_file:
            return super()._load_user_token()
        try:
            self.token = f"Bearer {read_token(self._access)}"
        except BadConfig:
            # A file that is being replaced: the old token may well live on.
            if not self.token or self._refused:
                raise
        else:
            self._due_s = asyncio.get_running_loop().time() + FILE_TOKEN_S
        return True

    async def load_from_exec_plugin(self) -> bool:
        """The library asks again at each turn when less than five minutes are left, which is always
        so for many plugins, or when the plugin named no end; and drops a certificate that comes
        with a token."""
        wanted = self._access.user.exec
        assert wanted is not None
        plugin = Plugin(wanted, self._cluster_info(), self._plugin_limit_s)
        try:
            printed = await plugin.run()
        except PluginFailed as error:
            raise self._bad(error.field, error.problem) from None
        self.token = f"Bearer {printed.token}" if printed.token else ""
        self.certificate = printed.certificate if printed.certificate[0] else self._access.pair
        ends_s = printed.expires_at_s
        self._due_s = ends_s - EARLY_S if ends_s else 0.0
        return True

    def _cluster_info(self) -> dict[str, object]:
        access = self._access
        info: dict[str, object] = {"server": access.server}
        if access.ca:
            info["certificate-authority-data"] = base64.b64encode(access.ca).decode()
        if access.server_name:
            info["tls-server-name"] = access.server_name
        return info

    def _bad(self, field: str, problem: str) -> BadConfig:
        return BadConfig(self._access.source, self._access.context, field, problem)


def _kubeconfig(access: Access) -> dict[str, object]:
    """What was vetted, once more as a kubeconfig: of one context, files of tokens only."""
    cluster = {
        "server": access.server,
        "insecure-skip-tls-verify": not access.verify,
        **({"tls-server-name": access.server_name} if access.server_name else {}),
        **({"proxy-url": access.proxy} if access.proxy else {}),
    }
    return {
        "current-context": NAME,
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": msgspec.to_builtins(access.user)}],
    }
