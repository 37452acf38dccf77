"""Read the server name (SNI) from the ClientHello, the first message of a TLS client."""

from kingdom.soldiers.sandbox.egress_rules import EgressRefused

# Clients send at most about 4 KiB today; the rest is room for future extensions.
_MESSAGE_BYTES_MAX = 16 << 10
# A client may split the message into a few records. More records than this are treated as an attack.
_RECORDS_MAX = 8
_RECORD_BYTES_MAX = 1 << 14
# The lengths of the headers, in bytes.
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
# The allowed values of the first and the second byte of a record. A byte is empty while it has not arrived.
_RECORD_BEGINS, _TLS_MAJOR = (b"", b"\x16"), (b"", b"\x03")
_CLIENT_HELLO = 1
_RANDOM_BYTES, _VERSION_BYTES = 32, 2
_SERVER_NAME, _ENCRYPTED_CLIENT_HELLO, _HOST_NAME = 0, 0xFE0D, 0


def server_name(data: bytes) -> str | None:
    """Return the server name in the first bytes of a TLS connection, in lower case, or None if bytes are missing.

    Raises EgressRefused if there is no name or the name is ambiguous.
    """
    message = _join_records(data)
    return None if message is None else _name_in(message)


def _join_records(data: bytes) -> bytes | None:
    """Return the ClientHello assembled from its records, or None if it is incomplete."""
    message = b""
    for _ in range(_RECORDS_MAX):
        if data[:1] not in _RECORD_BEGINS or data[1:2] not in _TLS_MAJOR:
            raise EgressRefused("this is not TLS: only https is forwarded")
        if len(data) < _RECORD_HEAD:
            return None
        size = int.from_bytes(data[3:_RECORD_HEAD])
        if not 0 < size <= _RECORD_BYTES_MAX:
            raise _malformed()
        message += data[_RECORD_HEAD : _RECORD_HEAD + size]
        if len(message) >= _MESSAGE_HEAD:
            whole = _MESSAGE_HEAD + int.from_bytes(message[1:_MESSAGE_HEAD])
            if message[0] != _CLIENT_HELLO or whole > _MESSAGE_BYTES_MAX or len(message) > whole:
                raise _malformed()
            if len(message) == whole:
                return message[_MESSAGE_HEAD:]
        if len(data) < _RECORD_HEAD + size:
            return None
        data = data[_RECORD_HEAD + size :]
    raise EgressRefused("its ClientHello is split into more records than any client sends")


def _name_in(message: bytes) -> str:
    hello = _HelloFields(message)
    hello.take(_VERSION_BYTES + _RANDOM_BYTES)
    # Skip the session id, the cipher suites and the compression methods.
    for width in (1, 2, 1):
        hello.block(width)
    extensions = hello.block(2) if hello.left else _HelloFields(b"")
    hello.expect_end()
    found: dict[int, _HelloFields] = {}
    while extensions.left:
        kind = int.from_bytes(extensions.take(2))
        if kind in found:
            raise _malformed()
        found[kind] = extensions.block(2)
    if _ENCRYPTED_CLIENT_HELLO in found:
        raise EgressRefused("it hides the server name (Encrypted Client Hello): turn that off in the client")
    if _SERVER_NAME not in found:
        raise EgressRefused("its TLS has no server name (SNI), so the host cannot be checked")
    names = found[_SERVER_NAME].block(2)
    found[_SERVER_NAME].expect_end()
    kind, name = names.take(1)[0], names.block(2)
    names.expect_end()
    try:
        text = name.take(name.left).decode("ascii")
    except UnicodeDecodeError:
        raise _malformed() from None
    if kind != _HOST_NAME or not text:
        raise _malformed()
    return text.lower()


class _HelloFields:
    """Reads the fields of a message in order; a field longer than the rest of the message is malformed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise _malformed()
        self._at += size
        return self._data[self._at - size : self._at]

    def block(self, width: int) -> "_HelloFields":
        """Return the bytes that follow a length field of `width` bytes."""
        return _HelloFields(self.take(int.from_bytes(self.take(width))))

    def expect_end(self) -> None:
        if self.left:
            raise _malformed()


def _malformed() -> EgressRefused:
    return EgressRefused("its ClientHello is malformed")
