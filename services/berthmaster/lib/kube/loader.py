"""A kubeconfig's context as kubernetes_asyncio's Configuration, with current credentials.

The library's loader chooses the authentication method, and sets server, TLS and proxy. Each
override here fixes a fault of the library, named in its docstring. Credentials change: mounted
tokens are renewed, and plugins issue short-lived ones. So each request checks their age first, and
reuses credentials until they expire.
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
EARLY_S: Final = 30.0  # a credential is renewed this long before its end
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
        """``now`` returns seconds since 1970."""
        super().__init__(_kubeconfig(access), config_base_path="")
        self._access = access
        self._now = now
        self._plugin_limit_s = plugin_limit_s
        self._lock = asyncio.Lock()
        self._answers = 0
        self._refused = False  # whether the server rejected the current credentials
        self._due_s = 0.0  # by ``now``, or by the event loop for a token file; 0 = never
        self.token = ""  # a whole header; "" = none
        self.certificate = access.pair  # of new connections; two empty values = none

    @contextmanager
    def configuration(self) -> Iterator[Configuration]:
        """Yield the library's connection settings. The files named in them last for the block."""
        found = Configuration()
        # As in kubectl: authorities of older clusters lack extensions that the strict check needs.
        found.disable_strict_ssl_verification = True
        with ExitStack() as files:
            # With both fields set, the library uses these files unchanged (see
            # certificate_files.py).
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
        """Renew ``token`` and ``certificate`` when due. Raise BadConfig.

        ``refused``: the server rejected the current credentials, so obtain new ones. The library's
        own refresh task serves plugins only, and ends at the first error.
        """
        before = self._answers
        if not refused and before and not self._is_due():
            return
        async with self._lock:
            # Many requests may be refused at once. The first one here renews for all.
            if before == self._answers:
                self._refused = refused
                await self._load_authentication()
                self._answers += 1

    def _is_due(self) -> bool:
        clock = asyncio.get_running_loop().time if self._access.user.token_file else self._now
        return bool(self._due_s) and clock() > self._due_s

    def _load_user_token(self) -> bool:
        """Load the token file, as kubectl does, and read the file again when due.

        The library reads the file once, without a size limit, keeps the line end as part of the
        token, and prefers an old inline token.
        """
        if not self._access.user.token_file:
            return super()._load_user_token()
        try:
            self.token = f"Bearer {read_token(self._access)}"
        except BadConfig:
            # The file may be in replacement, and the old token still valid.
            if not self.token or self._refused:
                raise
        else:
            self._due_s = asyncio.get_running_loop().time() + FILE_TOKEN_S
        return True

    async def load_from_exec_plugin(self) -> bool:
        """Run the plugin again only shortly before the credential ends.

        The library runs a plugin at every request when less than five minutes are left, which is
        always so for many plugins, or when the plugin states no end. The library also drops a
        certificate that comes with a token.
        """
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
    """Return the checked access as a kubeconfig with one context, and token files only."""
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
