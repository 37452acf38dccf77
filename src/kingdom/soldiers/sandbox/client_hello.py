"""The name in the first message of a TLS client, the ClientHello, which says for whom a connection is."""

from kingdom.soldiers.sandbox.egress_rules import EgressRefused

# The largest that clients send is about 4 KiB; the rest is room for what is to come.
_MESSAGE_BYTES_MAX = 16 << 10
# A client may cut it into records, but one that needs more than a few of them only wants to cost time.
_RECORDS_MAX = 8
_RECORD_BYTES_MAX = 1 << 14
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
# Of both there may be nothing yet.
_RECORD_BEGINS, _TLS_MAJOR = (b"", b"\x16"), (b"", b"\x03")
_CLIENT_HELLO = 1
_RANDOM_BYTES, _VERSION_BYTES = 32, 2
_SERVER_NAME, _ENCRYPTED_CLIENT_HELLO, _HOST_NAME = 0, 0xFE0D, 0


def server_name(data: bytes) -> str | None:
    """Return the name that a client asks for in the beginning of its TLS, in lower case, or None if more must come.

    Raises EgressRefused where there is no such name, or where it could be another one.
    """
    message = _message(data)
    return None if message is None else _name_in(message)


def _message(data: bytes) -> bytes | None:
    """Return the ClientHello out of the records that it comes in, or None if it is not whole."""
    message = b""
    for _ in range(_RECORDS_MAX):
        if data[:1] not in _RECORD_BEGINS or data[1:2] not in _TLS_MAJOR:
            raise EgressRefused("this is not TLS: only https is carried")
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
    raise EgressRefused("its ClientHello comes in more pieces than any client sends")


def _name_in(message: bytes) -> str:
    hello = _Fields(message)
    hello.take(_VERSION_BYTES + _RANDOM_BYTES)
    # The session, the ciphers and the compressions.
    for width in (1, 2, 1):
        hello.block(width)
    extensions = hello.block(2) if hello.left else _Fields(b"")
    hello.end()
    found: dict[int, _Fields] = {}
    while extensions.left:
        kind = int.from_bytes(extensions.take(2))
        if kind in found:
            raise _malformed()
        found[kind] = extensions.block(2)
    if _ENCRYPTED_CLIENT_HELLO in found:
        raise EgressRefused("it hides the name that it asks for (Encrypted Client Hello): turn that off in the client")
    if _SERVER_NAME not in found:
        raise EgressRefused("its TLS names no host (SNI), so nobody can tell for whom it is")
    names = found[_SERVER_NAME].block(2)
    found[_SERVER_NAME].end()
    kind, name = names.take(1)[0], names.block(2)
    names.end()
    try:
        text = name.take(name.left).decode("ascii")
    except UnicodeDecodeError:
        raise _malformed() from None
    if kind != _HOST_NAME or not text:
        raise _malformed()
    return text.lower()


class _Fields:
    """Takes the fields of a message one after the other; one that is longer than the rest is malformed."""

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

    def block(self, width: int) -> "_Fields":
        """Return what follows a length of so many bytes."""
        return _Fields(self.take(int.from_bytes(self.take(width))))

    def end(self) -> None:
        if self.left:
            raise _malformed()


def _malformed() -> EgressRefused:
    return EgressRefused("its TLS begins with a malformed ClientHello")
