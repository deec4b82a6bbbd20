"""Stands in for the providers' own hosts: an HTTP proxy that ends TLS itself, with certificates of this run alone.

A client whose environment names it believes that it talks to its provider, so that what it leaves out behind another
address can be seen.
"""

import asyncio
import contextlib
import ssl
import subprocess
from pathlib import Path

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
    key, certificate = folder / "hosts.key", folder / "hosts.pem"
    names = ",".join(f"DNS:{host}" for host in HOSTS)
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    authority = ["-subj", "/CN=Tests", "-keyout", str(folder / "authority.key"), "-out", str(folder / "authority.pem")]
    signed = ["-subj", "/CN=Hosts", "-keyout", str(key), "-out", str(certificate), "-addext", f"subjectAltName={names}"]
    signed += ["-addext", "basicConstraints=critical,CA:FALSE"]
    signed += ["-CA", str(folder / "authority.pem"), "-CAkey", str(folder / "authority.key")]
    for arguments in (authority, signed):
        subprocess.run([*new, *arguments], check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
