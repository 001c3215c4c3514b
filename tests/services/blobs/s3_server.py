"""An S3 server with prepared answers: raw bytes, cut, delayed or reset. TLS is optional."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.services.cassandra.fake_servers import listening

Act = Callable[[socket.socket], None]
NO_KEY = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Closed(Exception):
    """Raised by an answer after which the connection ends."""


def answer(status: int, body: bytes = b"", *lines: str) -> bytes:
    """The bytes of a complete HTTP response."""
    named = {line.partition(":")[0].lower() for line in lines}
    length = [] if "transfer-encoding" in named else [f"Content-Length: {len(body)}"]
    head = "\r\n".join([f"HTTP/1.1 {status} Some reason", *length, *lines])
    return head.encode() + b"\r\n\r\n" + body


def part(content: bytes, total: int | None = None, *lines: str) -> bytes:
    """The bytes of the response to the first range of an object."""
    whole = len(content) if total is None else total
    head = f"Content-Range: bytes 0-{len(content) - 1}/{whole}"
    modified = "Last-Modified: Sun, 22 Nov 2026 10:00:00 GMT"
    return answer(206, content, head, 'ETag: "x"', modified, *lines)


STORED = answer(200, b"", 'ETag: "x"')


def say(data: bytes) -> Act:
    """Sends the bytes and keeps the connection."""
    return lambda connection: connection.sendall(data)


def cut(data: bytes = b"") -> Act:
    """Sends the bytes, then closes the connection."""

    def act(connection: socket.socket) -> None:
        connection.sendall(data)
        raise Closed

    return act


def reset(connection: socket.socket) -> None:
    """Closes the connection by RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise Closed


def late(seconds: float, data: bytes) -> Act:
    """Sends the bytes after `seconds`, in two pieces."""

    def act(connection: socket.socket) -> None:
        time.sleep(seconds)
        connection.sendall(data[:10])
        time.sleep(0.05)
        connection.sendall(data[10:])

    return act


class Server:
    """Handles each request with the next of `acts`; after the last, with `rest`.

    `asked`: method and path of each request. `heads`: their heads. `connections`: their number.
    """

    def __init__(self, *acts: Act, rest: Act, after: Act | None = None) -> None:
        self.acts = list(acts)
        self.rest = rest
        self.after = after
        """Runs on a connection when it is idle after an answer."""
        self.asked: list[str] = []
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.port = 0
        self._lock = threading.Lock()

    def serve(self, connection: socket.socket, context: ssl.SSLContext | None) -> None:
        with suppress(OSError, Closed), connection:
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            self.connections += 1
            buffer = b""
            while True:
                while b"\r\n\r\n" not in buffer:
                    if not (data := connection.recv(65536)):
                        return
                    buffer += data
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                length = re.search(rb"(?im)^content-length: *(\d+)", head)
                while len(buffer) < (size := int(length[1]) if length else 0):
                    buffer += connection.recv(65536)
                with self._lock:
                    self.asked.append(b" ".join(head.split(b" ", 2)[:2]).decode())
                    self.heads.append(head)
                    self.bodies.append(buffer[:size])
                    act = self.acts.pop(0) if self.acts else self.rest
                buffer = buffer[size:]
                act(connection)
                if self.after is not None:
                    time.sleep(0.05)
                    self.after(connection)


def issued(folder: Path) -> tuple[Path, Path, Path]:
    """Certificate and key of a server at 127.0.0.1, and the CA certificate that issued it.

    The two certificates differ, because rustls rejects a CA certificate of a server.
    """
    now, keys = datetime.now(UTC), [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", "s3")
    ]
    pems = []
    for name, key, is_ca in zip(names, keys, (True, False), strict=True):
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False
            )
        )
        pems.append(built.sign(keys[0], hashes.SHA256()).public_bytes(Encoding.PEM))
    secret = keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files = (folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    for file, content in zip(files, (pems[1], secret, pems[0]), strict=True):
        file.write_bytes(content)
    return files


@contextmanager
def serving(server: Server, pair: tuple[Path, Path] | None = None) -> Iterator[Server]:
    """Serves at `server.port`; with `pair`, a certificate and its key, by TLS."""
    context = None
    if pair is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
    with listening(lambda connection: server.serve(connection, context)) as port:
        server.port = port
        yield server
