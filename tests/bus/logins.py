"""Those who know who somebody is, for tests of logins: a provider of OpenID Connect and an API
server that reviews tokens, each on a free port of the loopback."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from tests.support.site import Site

Json = dict[str, Any]
AUDIENCE = "berthmaster"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


class OidcProvider(Site):
    """``keys``: what it publishes, by key id; ``broken``: it answers 500 from now on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.keys: dict[str, PrivateKeyTypes] = {"rsa": RSA_KEY, "ec": EC_KEY}
        self.broken = False
        self.said: Json = {}  # instead of what is right in its discovery document

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/.well-known/openid-configuration", self._discovery),
            web.get("/keys", self._keys),
        ]

    async def _discovery(self, request: web.Request) -> web.Response:
        self.asked.append("discovery")
        if self.broken:
            return web.Response(status=500)
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys"} | self.said)

    async def _keys(self, request: web.Request) -> web.Response:
        self.asked.append("keys")
        return web.json_response({"keys": [public_jwk(k, kid) for kid, k in self.keys.items()]})

    def token(self, key: str = "rsa", **claims: Any) -> str:
        """A good one, with these claims otherwise; None = left out."""
        made = RSA_KEY if key == "rsa" else EC_KEY
        algorithm = "RS256" if key == "rsa" else "ES256"
        return signed_token(self.claims(**claims), made, algorithm, kid=key)

    def claims(self, **claims: Any) -> Json:
        now = int(time.time())
        said = {"iss": self.url, "sub": "ann", "aud": AUDIENCE, "iat": now, "exp": now + 60}
        said |= {"groups": ["ml", "all"]} | claims
        return {name: value for name, value in said.items() if value is not None}


def signed_token(claims: Json, key: Any, algorithm: str, *, kid: str | None, **header: Any) -> str:
    named = {"kid": kid} if kid else {}
    return jwt.encode(claims, key, algorithm=algorithm, headers=named | header)


def raw_token(header: Json, claims: Json, signature: bytes = b"") -> str:
    """One that a library would not make."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def public_jwk(key: Any, kid: str) -> Json:
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else None
    if kind is not None:
        made = kind.to_jwk(key.public_key(), as_dict=True)
    else:
        made = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": kid, "use": "sig"}


class ReviewingApi(Site):
    """An API server that knows some tokens: whose each is, and for which audiences."""

    ISSUER = "https://kubernetes.default.svc.cluster.local"  # every kubeadm cluster's

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.known: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.status = 201
        self.knows_audiences = True

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/apis/authentication.k8s.io/v1/tokenreviews", self._review)]

    async def _review(self, request: web.Request) -> web.Response:
        self.asked.append("review")
        spec = (await request.json())["spec"]
        if self.status != 201:
            words = {"kind": "Status", "message": f"no: {spec['token']}", "reason": "Forbidden"}
            return web.json_response(words, status=self.status)
        name, audiences = self.known.get(spec["token"], ("", ()))
        good = [each for each in spec["audiences"] if each in audiences]
        status: Json = {
            "authenticated": bool(good),
            "error": "" if good else "invalid bearer token",
        }
        if good:
            status |= {"user": {"username": name}}
            status |= {"audiences": good} if self.knows_audiences else {}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}
        return web.json_response(body, status=201)

    def token(self, name: str, *audiences: str) -> str:
        """A token of a ServiceAccount, NAMESPACE/NAME, for these audiences."""
        claims = {"iss": self.ISSUER, "sub": name, "n": len(self.known), "at": self.url}
        token = raw_token({"alg": "RS256"}, claims, b"signed")
        self.known[token] = (f"system:serviceaccount:{name.replace('/', ':')}", audiences)
        return token

    def kubeconfig(self, path: Path) -> Path:
        user = {"name": "u", "user": {}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        path.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [user],
                    "contexts": [context],
                    "current-context": "c",
                }
            )
        )
        return path
