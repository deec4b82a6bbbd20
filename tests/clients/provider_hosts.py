"""Stands in for the providers' own hosts: an HTTP proxy that ends TLS itself, with certificates of this run alone.

A client whose environment names it believes that it talks to its provider, so that what it leaves out behind another
address can be seen.
"""

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from upstream import Upstream

HOSTS = (
    "api.anthropic.com",
    "api.openai.com",
    "chatgpt.com",
    "generativelanguage.googleapis.com",
    "dashscope.aliyuncs.com",
)


class ProviderHosts(Upstream):
    """A provider that answers for each of `HOSTS`; all other hosts are refused."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.authority = folder / "authority.pem"
        self._tls = _make_certificates(folder)

    def environment(self) -> dict[str, str]:
        """The variables by which a client comes here, and trusts the certificates."""
        address, authority = f"http://127.0.0.1:{self.port}", str(self.authority)
        names = ("HTTPS_PROXY", "https_proxy")
        trust = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "CODEX_CA_CERTIFICATE")
        return dict.fromkeys(names, address) | dict.fromkeys(trust, authority) | {"NO_PROXY": "127.0.0.1,localhost"}

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
            host = (await reader.readuntil(b"\r\n\r\n")).partition(b" ")[2].partition(b":")[0].decode()
            if host not in HOSTS:
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                writer.close()
                return
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await writer.start_tls(self._tls)
            await super()._connection(reader, writer)


def _make_certificates(folder: Path) -> ssl.SSLContext:
    """Writes an authority and a certificate for all hosts; returns the context of a server."""
    authority_key, key = (rsa.generate_private_key(public_exponent=65_537, key_size=2_048) for _ in range(2))
    authority = _begin_certificate("Tests", "Tests", authority_key, is_authority=True)
    _write(folder / "authority.pem", authority.sign(authority_key, hashes.SHA256()))
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS])
    hosts = _begin_certificate("Hosts", "Tests", key, is_authority=False).add_extension(names, critical=False)
    _write(folder / "hosts.pem", hosts.sign(authority_key, hashes.SHA256()))
    (folder / "hosts.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "hosts.pem", folder / "hosts.key")
    return context


def _begin_certificate(
    subject: str, issuer: str, key: rsa.RSAPrivateKey, *, is_authority: bool
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )


def _write(file: Path, certificate: x509.Certificate) -> None:
    file.write_bytes(certificate.public_bytes(Encoding.PEM))
