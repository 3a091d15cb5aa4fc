"""Certificates of an embedded server: an authority, and a server certificate signed by the
authority.

A folder holds `ca.crt`, `ca.key`, `server.crt` and `server.key`, and such a pair for each other
server of the hub, by its own name. Clients trust `ca.crt`, the only file that leaves the folder.
The authority is created once and outlives all clients. A server certificate is renewed when the
host names change or a third of the lifetime is left. The renewal disturbs no client, since clients
trust the authority. Only the owner can read the keys, and no
output shows a key.
"""

import datetime as dt
import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE: Final = dt.timedelta(days=20 * 365)  # a renewal means new files in every cluster
SERVER_LIFE: Final = dt.timedelta(days=366)
RENEW_BEFORE: Final = SERVER_LIFE / 3
BACKDATED: Final = dt.timedelta(days=1)  # so that clients with slow clocks accept the certificate
USAGES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
LOCAL_NAMES: Final = ("localhost", "127.0.0.1")  # for the server's own services


class CertificatesError(Exception):
    """The folder or a file in it is invalid. The text names the path."""


class Certificates(NamedTuple):
    ca: Path
    certificate: Path
    key: Path


def certificates_in(folder: Path, server: str = "server") -> Certificates:
    """Return the paths of a server's files."""
    return Certificates(folder / "ca.crt", folder / f"{server}.crt", folder / f"{server}.key")


def ensure_certificates(
    folder: Path, names: Sequence[str], *, now_s: float, server: str = "server"
) -> Certificates:
    """Create missing certificates and renew due ones. Raises CertificatesError.

    ``names``: host names and addresses for clients, besides the local machine's. ``server``: name
    of the two files.
    """
    files = certificates_in(folder, server)
    now = dt.datetime.fromtimestamp(now_s, dt.UTC)
    wanted = [_general_name(name) for name in dict.fromkeys([*LOCAL_NAMES, *names])]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ca_key, ca = _authority(folder, now)
        if not _still_good(files, ca, wanted, now):
            key = ec.generate_private_key(ec.SECP256R1())
            made = _server_certificate(ca, ca_key, key, wanted, now)
            _write(files.key, _pem_key(key), mode=0o600)
            _write(files.certificate, _pem(made), mode=0o644)
    except OSError as error:
        raise CertificatesError(f"{error.filename or folder}: {error.strerror}") from error
    return files


def names_of(certificate: Path) -> tuple[str, ...]:
    """Return the host names and addresses of a certificate. Raises CertificatesError, OSError."""
    loaded = _load_certificate(certificate)
    held = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(name.value) for name in held)


def ends_at_s(certificate: Path) -> float:
    """Return when a certificate ends, in seconds since 1970. Raises CertificatesError, OSError."""
    return _load_certificate(certificate).not_valid_after_utc.timestamp()


def _authority(
    folder: Path, now: dt.datetime
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key_file, ca_file = folder / "ca.key", folder / "ca.crt"
    if not ca_file.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        _write(key_file, _pem_key(key), mode=0o600)
        _write(ca_file, _pem(_authority_certificate(key, now)), mode=0o644)
    loaded = _load(key_file)
    ca = _load_certificate(ca_file)
    if ca.not_valid_after_utc <= now:
        raise CertificatesError(
            f"{ca_file} has expired: remove {folder}, start again, and give each cluster its new "
            "Secret (berth cluster add)"
        )
    return loaded, ca


def _authority_certificate(key: ec.EllipticCurvePrivateKey, now: dt.datetime) -> x509.Certificate:
    # A unique name, to distinguish several authorities of a client.
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"berthmaster {secrets.token_hex(4)}")]
    )
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        _begun(name, name, key.public_key(), now, now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _server_certificate(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    now: dt.datetime,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "berthmaster server")])
    until = min(now + SERVER_LIFE, ca.not_valid_after_utc)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        _begun(name, ca.subject, key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        # Servers of a NATS cluster also present the certificate to each other.
        .add_extension(x509.ExtendedKeyUsage(USAGES), critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    until: dt.datetime,
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(until)
        .add_extension(identifier, critical=False)
    )


def _still_good(
    files: Certificates, ca: x509.Certificate, names: Sequence[x509.GeneralName], now: dt.datetime
) -> bool:
    if not (files.certificate.exists() and files.key.exists()):
        return False
    there = _load_certificate(files.certificate)
    try:
        there.verify_directly_issued_by(ca)
    except Exception:  # noqa: BLE001 # of another authority, of another kind: either way made anew
        return False
    held = there.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    public = there.public_key()
    same_key = _load(files.key).public_key() == public
    return same_key and list(held) == list(names) and there.not_valid_after_utc - now > RENEW_BEFORE


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise CertificatesError(f"{name!r} is no host name and no address") from error


def _load(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificatesError(f"{path} holds no private key of ours")
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise CertificatesError(f"{path} holds no certificate") from error


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write the file completely or not at all, and never readable by others in between."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    fresh.replace(path)
