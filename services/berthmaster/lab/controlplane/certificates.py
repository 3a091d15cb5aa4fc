"""The keys and certificates of one control plane: its authority, servers and users.

Kubernetes reads a client certificate's common name as the user, and its organizations as the
groups. So tests use the authority to create users with exactly the rights under test. The keys are
elliptic, because RSA keys take a second each.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK: Final = "127.0.0.1"
SERVICE_IP: Final = "10.0.0.1"  # of `kubernetes.default` inside
VALID_FOR: Final = dt.timedelta(days=2)
BEFORE: Final = dt.timedelta(hours=1)  # for clocks that tests set back


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files and as text."""

    certificate: Path
    key: Path

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.read_bytes()

    @property
    def key_pem(self) -> bytes:
        return self.key.read_bytes()


class Authority:
    """A certificate authority in a separate folder."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
        certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    @property
    def certificate_pem(self) -> bytes:
        """Return the certificate that a client must trust."""
        return self.certificate.read_bytes()

    def serving(self, name: str, *names: str) -> Pair:
        """Return a server certificate for loopback, with additional names."""
        alternatives: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address(LOOPBACK)),
            x509.IPAddress(ipaddress.ip_address(SERVICE_IP)),
            *(x509.DNSName(each) for each in ("localhost", *names)),
        ]
        extension = x509.SubjectAlternativeName(alternatives)
        return self._issue(name, (), ExtendedKeyUsageOID.SERVER_AUTH, name, extension)

    def client(self, user: str, groups: Sequence[str] = (), *, file: str) -> Pair:
        """Return a client certificate for a user. `file` names the two files."""
        return self._issue(user, groups, ExtendedKeyUsageOID.CLIENT_AUTH, file, None)

    def _issue(
        self,
        common_name: str,
        organizations: Sequence[str],
        usage: x509.ObjectIdentifier,
        file: str,
        alternatives: x509.SubjectAlternativeName | None,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, org) for org in organizations]
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        builder = (
            _builder(x509.Name(attributes), self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        signed = builder.sign(self._key, hashes.SHA256())
        pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        _write_secret(pair.key, _private_pem(key))
        return pair


@dataclass(frozen=True)
class SigningKey:
    """The key that signs and verifies service account tokens."""

    private: Path
    public: Path


def service_account_key(folder: Path) -> SigningKey:
    """Return a new key."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = SigningKey(folder / "service-account.key", folder / "service-account.pub")
    _write_secret(pair.private, _private_pem(key))
    pair.public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return pair


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + VALID_FOR)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_secret(path: Path, text: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(text)
