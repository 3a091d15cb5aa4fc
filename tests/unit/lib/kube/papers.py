"""Certificates and kubeconfigs for tests, made anew each time."""

import base64
import datetime as dt
import ipaddress
import json
import ssl
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

V1 = "client.authentication.k8s.io/v1"
DAY = dt.timedelta(days=1)


class Authority:
    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.pem = self._sign(self._name, self._key, ca=True, names=())

    def issue(self, name: str, *names: str) -> tuple[bytes, bytes]:
        """(certificate, key) as PEM; ``names``: DNS names or addresses of a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._sign(subject, key, ca=False, names=names), pem_of(key)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        ca: bool,
        names: tuple[str, ...],
    ) -> bytes:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(name) for name in names]), critical=False
            )
        made = builder.sign(self._key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def pem_of(key: ec.EllipticCurvePrivateKey, password: bytes = b"") -> bytes:
    """A private key as PEM, encrypted if there is a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption(),
    )


def serving(folder: Path, authority: Authority, *names: str) -> ssl.SSLContext:
    """What a server shows that asks its clients for certificates of the same authority."""
    certificate, key = authority.issue("server", *names)
    pair = folder / "server.pem"
    pair.write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    context.load_verify_locations(cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def kubeconfig(
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    *,
    name: str = "here",
    current: str | None = None,
) -> dict[str, Any]:
    """A kubeconfig of one context; JSON is YAML too."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name if current is None else current,
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": "s3cret"} if user is None else user}],
    }


def text(config: dict[str, Any]) -> bytes:
    return json.dumps(config).encode()


def credential(status: dict[str, Any] | None, **more: Any) -> str:
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status, **more})
