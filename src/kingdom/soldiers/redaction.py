"""Remove secrets from the output of agents before it is stored.

Secrets are the secret values of this realm, and every text that has the form of a well-known token. The search is fast
even in hostile text: it first looks for a literal part of each pattern, and the patterns hardly backtrack.
"""

import asyncio
import base64
import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog

REDACTED = "[redacted]"
# A value with fewer characters is likely to be an ordinary word.
_SECRET_MIN = 8
# A line with more characters is passed on in parts. Its last `_HELD_MAX` characters wait, because a secret that begins
# there may continue in the next part.
_LINE_MAX = 1 << 16
_HELD_MAX = 1 << 15
_CHUNK_BYTES = 1 << 16
_DEPTH_MAX = 100
_FILE_BYTES_MAX = 64 << 20
_CUT_NOTICE = b"\n[the rest is too long and is left out]\n"
_log = structlog.get_logger("kingdom.soldiers")
_NEVER_ESCAPED = re.compile(r"[A-Za-z0-9_.-]+")
_SECRET_NAME = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _SecretPattern:
    """The form of a kind of token: an anchor that every token contains, and an expression whose group is the secret."""

    anchor: str
    # The expression is compiled only after the anchor is found, because most known secrets never occur.
    expression: str


_TOKEN_PATTERNS = (
    _SecretPattern("sk-ant-", r"(sk-ant-[\w-]{16,4000}+)"),
    _SecretPattern("sk-", r"(sk-(?:(?:proj|svcacct|admin|or-v1|lf)-[\w-]{16,4000}+|[A-Za-z0-9]{32,4000}+))"),
    *(_SecretPattern(f"gh{kind}_", rf"(gh{kind}_[A-Za-z0-9]{{20,4000}}+)") for kind in "pousr"),
    _SecretPattern("github_pat_", r"(github_pat_\w{20,4000}+)"),
    _SecretPattern("glpat-", r"(glpat-[\w-]{16,4000}+)"),
    _SecretPattern("xox", r"(xox[abceoprs]-[\w.-]{10,4000}+)"),
    _SecretPattern("xapp-", r"(xapp-[\w-]{10,4000}+)"),
    _SecretPattern("hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows|triggers)/([\w/-]{10,4000}+)"),
    _SecretPattern("AKIA", r"(AKIA[A-Z0-9]{16})"),
    _SecretPattern("ASIA", r"(ASIA[A-Z0-9]{16})"),
    _SecretPattern("secret_access_key", r"secret_access_key[\"']?\s{0,4}[:=]\s{0,4}[\"']?([A-Za-z0-9/+]{40})"),
    _SecretPattern("SECRET_ACCESS_KEY", r"SECRET_ACCESS_KEY[\"']?\s{0,4}[:=]\s{0,4}[\"']?([A-Za-z0-9/+]{40})"),
    _SecretPattern("AIza", r"(AIza[\w-]{35})"),
    _SecretPattern("ya29.", r"(ya29\.[\w-]{20,4000}+)"),
    _SecretPattern("GOCSPX-", r"(GOCSPX-[\w-]{20,4000}+)"),
    _SecretPattern("_live_", r"([sr]k_live_[A-Za-z0-9]{16,4000}+)"),
    _SecretPattern("npm_", r"(npm_[A-Za-z0-9]{30,4000}+)"),
    _SecretPattern("pypi-", r"(pypi-[\w-]{40,4000}+)"),
    _SecretPattern("hf_", r"(hf_[A-Za-z0-9]{30,4000}+)"),
    _SecretPattern("ATATT", r"(ATATT[\w=-]{20,4000}+)"),
    _SecretPattern("SG.", r"(SG\.[\w-]{16,64}+\.[\w-]{16,128}+)"),
    # The second branch consumes text that only begins like a token, so that text is not scanned again.
    _SecretPattern("eyJ", r"(eyJ[\w-]{8,8000}+\.[\w-]{8,16000}+\.[\w-]{8,4000}+)|eyJ[\w-]{8,8000}+"),
    _SecretPattern(
        "PRIVATE KEY",
        r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:[^-]|-(?!----)){0,16000}+(?:-----END [A-Z ]{0,60}-----)?)",
    ),
    _SecretPattern("://", r"://[^\s/?#:@\"'<>`]{0,200}+:([^\s/?#@\"'<>`]{1,4000}+)@"),
    _SecretPattern(
        "uthorization",
        r"uthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:[Bb]earer|[Bb]asic|[Tt]oken)\s{1,4}([\w.~+/=-]{8,4000}+)",
    ),
    _SecretPattern("-api-key", r"-api-key[\"']?\s{0,4}[:=]\s{0,4}[\"']?([\w.~+/=-]{8,4000}+)"),
    _SecretPattern("-Api-Key", r"-Api-Key[\"']?\s{0,4}[:=]\s{0,4}[\"']?([\w.~+/=-]{8,4000}+)"),
)


class Redaction:
    """Removes the given secrets, in any spelling that programs use, and every token of a well-known form."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secret_patterns = {pattern for secret in secrets for pattern in _patterns_for(secret)}

    def with_secrets(self, secrets: Iterable[str]) -> "Redaction":
        """Return a Redaction that removes these secrets too."""
        more = Redaction(secrets)
        more._secret_patterns |= self._secret_patterns
        return more

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return _cover(text, self.spans(text))

    def beginning(self, text: str, length: int) -> str:
        """Return what the first `length` characters of a text say, without secrets and without the beginning of one."""
        return _cover(text[:length], self.spans(text[: length + _HELD_MAX]))

    def ending(self, text: str, length: int) -> str:
        """Return what the last `length` characters of a text say, without secrets and without the end of one."""
        window = text[-length - _HELD_MAX :]
        start = max(0, len(window) - length)
        return _cover(window, [(max(begin, start), end) for begin, end in self.spans(window) if end > start])[start:]

    def value(self, value: Any, depth: int = _DEPTH_MAX) -> Any:
        """Return a JSON value without secrets in any of its texts; parts that are nested too deep are replaced."""
        match value:
            case str():
                return self.text(value)
            case Mapping() | list() | tuple() if not depth:
                return REDACTED
            case Mapping():
                return {self.value(name): self.value(each, depth - 1) for name, each in value.items()}
            case list() | tuple():
                return [self.value(each, depth - 1) for each in value]
        return value

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the ranges of the secrets in a text, in order and merged."""
        return _merge(match.span(1) for match in self.find(text))

    def find(self, text: str) -> Iterator[re.Match[str]]:
        """Yield a match for each secret in a text, in any order. Its group is the secret."""
        for pattern in (*self._secret_patterns, *_TOKEN_PATTERNS):
            if pattern.anchor in text:
                matches = re.finditer(pattern.expression, text, re.ASCII)
                yield from (match for match in matches if match.start(1) >= 0)


# This is used by code that does not know the secrets of the realm, such as a program inside a sandbox.
DEFAULT_REDACTION = Redaction()


class RedactedStream:
    """Removes secrets from text that arrives in pieces; a line is held back until it is complete or too long."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._held = ""
        # How many characters at the beginning of `_held` belong to a secret whose beginning is no longer held back.
        self._cut_off = 0

    def feed(self, text: str) -> str:
        """Add the next piece of text, and return the text that is complete, without secrets."""
        self._held += text
        end = max(self._held.rfind("\n"), self._held.rfind("\r")) + 1
        if len(self._held) - end > _LINE_MAX:
            end = len(self._held) - _HELD_MAX
        if not end:
            return ""
        matches = list(self._redaction.find(self._held))
        # A secret that reaches `end` may continue in the next piece.
        unfinished = (match.start() for match in matches if match.start() < end <= match.end())
        return self._release(matches, min(unfinished, default=end))

    def finish(self) -> str:
        """Return the text that is still held back after the last piece, without secrets."""
        return self._release(list(self._redaction.find(self._held)), len(self._held))

    def _release(self, matches: list[re.Match[str]], end: int) -> str:
        """Return the held text before a position, without secrets."""
        cut_off = [(0, self._cut_off)] if self._cut_off else []
        ready = _cover(self._held[:end], _merge([*cut_off, *(match.span(1) for match in matches)]))
        self._held = self._held[end:]
        reached = (match.end(1) for match in matches if match.start() < end)
        self._cut_off = max(0, max(reached, default=0) - end, self._cut_off - end)
        return ready


class RedactedFile:
    """A file to which the output of a program is appended without secrets, up to a maximum size."""

    def __init__(self, path: Path, redaction: Redaction) -> None:
        self._file = path.open("ab", buffering=0)
        self._bytes_left = _FILE_BYTES_MAX - self._file.tell()
        self._stream = RedactedStream(redaction)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Write the text that was held back, and close the file."""
        with self._file:
            self._append(self._stream.feed(self._decoder.decode(b"", final=True)) + self._stream.finish())

    def write(self, data: bytes) -> None:
        """Append the next piece of the output."""
        self._append(self._stream.feed(self._decoder.decode(data)))

    def _append(self, text: str) -> None:
        if self._bytes_left < 0 or not text:
            return
        data = text.encode()
        self._file.write(data if len(data) <= self._bytes_left else data[: self._bytes_left] + _CUT_NOTICE)
        self._bytes_left -= len(data)


async def write_redacted(source: asyncio.StreamReader, path: Path, redaction: Redaction) -> None:
    """Append a program's output to a file until the output ends.

    If the file cannot be written, the output is dropped, so that the program never blocks.
    """
    try:
        with RedactedFile(path, redaction) as file:
            while chunk := await source.read(_CHUNK_BYTES):
                file.write(chunk)
    except OSError as error:
        _log.warning("the output of a program cannot be written", file=str(path), error=str(error))
        while await source.read(_CHUNK_BYTES):
            continue


def secrets_in(environment: Mapping[str, str]) -> set[str]:
    """Return the values of the variables whose names look like secrets."""
    return {value for name, value in environment.items() if _SECRET_NAME.search(name)}


def _merge(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order; those that touch or overlap become one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _cover(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text with every range replaced. The ranges are in order; they may end or begin after the text."""
    parts: list[str] = []
    end = 0
    for start, stop in spans:
        if start < len(text):
            parts += (text[end:start], REDACTED)
            end = stop
    return "".join((*parts, text[end:])) if parts else text


def _patterns_for(secret: str) -> Iterator[_SecretPattern]:
    """Yield patterns for a secret and for each of its lines: plain, in JSON or URL spelling, and in base64."""
    for line in (secret, *secret.splitlines()):
        plain = line.strip()
        if len(plain) < _SECRET_MIN:
            continue
        yield _SecretPattern(
            max(_NEVER_ESCAPED.findall(plain), key=len, default=""), f"({''.join(map(_any_spelling, plain))})"
        )
        yield from (_SecretPattern(encoded, f"({re.escape(encoded)})") for encoded in _in_base64(plain.encode()))


def _any_spelling(character: str) -> str:
    """Return an expression for a character in any JSON or URL spelling, even if it was encoded several times."""
    itself = re.escape(character)
    if _NEVER_ESCAPED.match(character):
        return itself
    # This is the last character of the JSON spelling: `n` for a newline, and usually the character itself.
    short = re.escape(msgspec.json.encode(character).decode()[-2])
    units = re.findall("....", character.encode("utf-16-be").hex())
    # Each alternative begins with a fixed character, which makes the search fast.
    spellings = (
        "[ +]" if character == " " else itself,
        rf"\\\\{{0,7}}{short}",
        "".join(rf"\\\\{{0,7}}(?i:u{unit})" for unit in units),
        "".join(f"%(?:25){{0,3}}(?i:{byte:02x})" for byte in character.encode()),
    )
    return f"(?:{'|'.join(spellings)})"


def _in_base64(secret: bytes) -> Iterator[str]:
    """Yield the base64 forms of a secret at every alignment within a longer text."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + secret).decode().rstrip("=")
        # The first and last characters also depend on the neighboring bytes.
        first = -(-before * 8 // 6)
        last = len(encoded) - ((before + len(secret)) % 3 != 0)
        kept = encoded[first:last]
        if len(kept) >= _SECRET_MIN:
            yield kept
            yield kept.translate({ord("+"): "-", ord("/"): "_"})
