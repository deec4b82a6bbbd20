"""The network on the way to a provider: a self-signed certificate, an HTTP proxy that opens tunnels."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.loopback import Answer, Recorded


def certificate(path: Path) -> Path:
    """A self-signed certificate for localhost with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, form, serialization.NoEncryption()))
    return path


async def tunnel(request: Recorded, answer: Answer) -> None:
    """Serves CONNECT as an HTTP proxy does, but always to this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(request.target.rpartition(":")[2]))
    await answer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def back() -> None:
        while data := await reader.read(65536):
            await answer.send(data)

    returning = asyncio.create_task(back())
    while data := await answer.receive(65536):
        writer.write(data)
    writer.close()
    returning.cancel()
    await answer.close()
