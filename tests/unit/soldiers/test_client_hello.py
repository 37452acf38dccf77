"""Read the server name in real and crafted ClientHello messages."""

import ssl
from collections.abc import Callable, Iterator

import pytest

from kingdom.soldiers.sandbox.client_hello import server_name
from kingdom.soldiers.sandbox.egress_rules import EgressRefused

NAME = "files.example.org"


def real(name: str | None = NAME, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """Return the ClientHello that Python sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.maximum_version = name is not None, version
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name).do_handshake()
    return sent.read()


def records(message: bytes, *cuts: int) -> bytes:
    """Return a handshake message split into records at the cuts."""
    starts = (0, *cuts)
    pieces = [message[start:end] for start, end in zip(starts, (*cuts, len(message)), strict=True)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2) + piece for piece in pieces)


def block(data: bytes, width: int = 2) -> bytes:
    return len(data).to_bytes(width) + data


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2) + block(data)


def names(*entries: bytes, kind: int = 0) -> bytes:
    return extension(0, block(b"".join(bytes([kind]) + block(entry) for entry in entries)))


def hello(*extensions: bytes, after: bytes = b"") -> bytes:
    fields = b"\x03\x03" + bytes(32) + block(b"", 1) + block(b"\x13\x01") + block(b"\0", 1)
    body = fields + block(b"".join(extensions)) + after
    return b"\x01" + block(body, 3)


SNI = names(NAME.encode())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_name_of_a_real_client_is_read_however_its_bytes_arrive(version: ssl.TLSVersion) -> None:
    data = real(version=version)
    assert server_name(data) == NAME
    assert [server_name(data[:end]) for end in range(len(data))] == [None] * len(data)


def test_the_name_is_read_however_the_message_is_cut_into_records() -> None:
    message = real()[5:]
    for cut in range(1, len(message)):
        data = records(message, cut)
        assert server_name(data) == NAME
        assert server_name(data[: cut + 5]) is None
        assert server_name(data[:-1]) is None
    assert server_name(records(message, *range(1, 8))) == NAME


def test_the_server_name_is_in_lower_case_and_later_bytes_are_ignored() -> None:
    assert server_name(records(hello(names(b"Files.Example.ORG")))) == NAME
    assert server_name(real() + b"\x14\x03\x03\x00\x01\x01" + b"anything") == NAME


def crafted() -> Iterator[tuple[str, bytes, str]]:
    yield "no name", real(None), r"has no server name \(SNI\)"
    yield "no extensions", records(hello()), r"has no server name \(SNI\)"
    yield "hidden name", records(hello(SNI, extension(0xFE0D, b"\0"))), "Encrypted Client Hello"
    yield "two names", records(hello(names(b"a.org", b"b.org"))), "malformed"
    yield "two extensions", records(hello(SNI, names(b"evil.org"))), "malformed"
    yield "no host name", records(hello(names(b"a.org", kind=1))), "malformed"
    yield "an empty name", records(hello(names(b""))), "malformed"
    yield "no ASCII", records(hello(names("ä.org".encode()))), "malformed"
    yield "no entry", records(hello(extension(0, block(b"")))), "malformed"
    yield "more after the names", records(hello(extension(0, SNI[4:] + b"x"))), "malformed"
    yield "more after the extensions", records(hello(SNI, after=b"x")), "malformed"
    yield "more after the message", records(hello(SNI) + b"\x01"), "malformed"
    yield "an extension that is too long", records(hello(b"\0\0\xff\xff")), "malformed"
    yield "half an extension", records(hello(b"\0")), "malformed"
    yield "a huge message", records(b"\x01\xff\xff\xff" + bytes(100)), "malformed"
    yield "another message", records(b"\x02" + hello(SNI)[1:]), "malformed"
    yield "an empty record", records(hello(SNI), 0), "malformed"
    yield "a huge record", b"\x16\x03\x01\x40\x01", "malformed"
    yield "many records", records(hello(SNI), *range(1, 9)), "more records"
    yield "another record between", records(hello(SNI)[:9]) + b"\x15\x03\x03\x00\x02\x01\x00", "not TLS"
    yield "http", b"GET / HTTP/1.1\r\n\r\n", "not TLS"
    yield "ssh", b"SSH-2.0-x", "not TLS"
    yield "SSL 2", b"\x80\x2e\x01\x03\x01", "not TLS"


@pytest.mark.parametrize(("data", "reason"), [pytest.param(data, why, id=name) for name, data, why in crafted()])
def test_a_client_hello_without_a_clear_host_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(EgressRefused, match=reason):
        server_name(data)


@pytest.mark.parametrize("change", [lambda byte: byte ^ 1, lambda byte: byte ^ 0x80, lambda _: 0, lambda _: 255])
def test_a_damaged_hello_is_refused_or_read_and_never_fails_otherwise(change: Callable[[int], int]) -> None:
    data = records(hello(SNI))
    for at in range(len(data)):
        damaged = data[:at] + bytes([change(data[at])]) + data[at + 1 :]
        try:
            found = server_name(damaged)
        except EgressRefused:
            continue
        assert found is None or found.isascii()
