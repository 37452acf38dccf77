"""TLS servers that return their name, with their own certificate."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.servers import free_port


def make_certificate(folder: Path, *names: str) -> Path:
    """Write cert.pem and key.pem, a certificate for some names that is its own authority, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2", "-subj", "/CN=test"),
            *("-addext", f"subjectAltName={','.join(f'DNS:{name}' for name in names)}"),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem"


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


@dataclass
class Web:
    """A TLS server on several addresses of this machine, with one port. It answers a request with its address."""

    port: int = field(default_factory=free_port)
    received: list[bytes] = field(default_factory=list)
    connections: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        address = writer.get_extra_info("sockname")[0]
        try:
            while line := await reader.readline():
                self.received.append(line)
                if line == b"\r\n":
                    body = f"hello from {address}\n".encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                elif line.startswith(b"echo "):
                    writer.write(line.removeprefix(b"echo "))
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(certificate: Path, *addresses: str) -> AsyncIterator[Web]:
    """Run a server on a free port of some addresses."""
    web = Web()
    servers: list[asyncio.Server] = []
    try:
        for address in addresses:
            server = await asyncio.start_server(web.answer, address, web.port, ssl=server_context(certificate))
            servers.append(server)
        yield web
    finally:
        for server in servers:
            server.close()
