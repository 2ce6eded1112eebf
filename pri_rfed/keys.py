"""Certificates and keys: a private authority for one federation, a certificate for its server, a key for each client.

Server and clients meet over TLS: clients trust the federation's own authority and nobody else. A client proves who it
is by its private key, whose public half the server's operator has registered.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
SERVER, SERVER_KEY = "server.crt", "server.key"

_SKEW = datetime.timedelta(days=1)
"""How much earlier than now a certificate begins to hold, for clocks that are late."""


def make_authority(folder: Path, days: int = 3650) -> None:
    """A new authority in `folder`: ca.crt, which everybody gets, and ca.key, which stays where it is.

    Raises FileExistsError rather than replace an authority, also one whose key was moved away: clients trust no other.
    """
    for there in (folder / AUTHORITY, folder / AUTHORITY_KEY):
        if there.exists():
            raise FileExistsError(
                f"{there} is there already, and clients trust no other authority: bring both {AUTHORITY} and "
                f"{AUTHORITY_KEY} back to make a certificate, or begin a new federation in another folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "PriRFed federation")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_secret(folder / AUTHORITY_KEY, _pem(key))
    (folder / AUTHORITY).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def make_server_certificate(folder: Path, hosts: Sequence[str], days: int = 825) -> None:
    """A certificate for the server under all these names and addresses, signed by the authority in `folder`:
    server.crt and server.key. It holds for 127.0.0.1 as well, where the server's own processes reach each other.

    Raises ValueError without a host, or for one that is neither a name nor an address.
    """
    if not hosts:
        raise ValueError("hosts: at least one name or address, under which clients reach the server, is needed")
    alternatives = [_alternative(host) for host in dict.fromkeys([*hosts, "127.0.0.1"])]
    authority = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
    signer = serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{folder / AUTHORITY_KEY} holds no elliptic-curve key")
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _builder(name, authority.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA384())
    )
    write_secret(folder / SERVER_KEY, _pem(key))
    (folder / SERVER).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def make_client_key(path: Path) -> None:
    """A client's key: the private half in `path`, which never leaves its machine, the public one in `path`.pub.

    Raises FileExistsError rather than replace a key.
    """
    if path.exists():
        raise FileExistsError(f"{path} is there already; a key is not overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    write_secret(path, key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def public_pem(path: Path) -> bytes:
    """The public key in an OpenSSH .pub file, as PEM. Raises ValueError unless it is an elliptic-curve key."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} holds no public key of OpenSSH's format: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"{path} holds no elliptic-curve key (ecdsa); make one with `pri-rfed keys client`")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def load_client_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A client's private key. Raises ValueError unless it is an elliptic-curve key in OpenSSH's format."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except ValueError as error:
        raise ValueError(f"{path} holds no private key of OpenSSH's format: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} holds no elliptic-curve key (ecdsa); make one with `pri-rfed keys client`")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(r"[\w*.-]+", host, re.ASCII):
            raise ValueError(f"host = {host!r}: must be a name or an address, without https:// or a port") from None
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)
