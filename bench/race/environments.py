"""The environments of the peers, below a directory that git ignores."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.race.processes import ROOT
from bench.race.sides import Side

DIRECTORY = ROOT / ".race"
LOCK = Path(__file__).parent / "peers" / "requirements.txt"
NATS_SERVER = "github.com/nats-io/nats-server/v2@v2.15.2"
_PATIENCE_SECONDS = 600


class NotInstallableError(RuntimeError):
    """Raised when a peer cannot be installed on this machine."""


def find_python(side: Side) -> Path:
    """Return the interpreter of a side, installing its environment if needed."""
    if not side.is_peer:
        return Path(sys.executable)
    place = DIRECTORY / side.store
    installed, wanted = place / "installed.txt", f"{' '.join(side.packages)}\n{LOCK.read_text()}"
    if not installed.exists() or installed.read_text() != wanted:
        uv = _find_uv()
        _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, place)
        _run(uv, "pip", "install", "--quiet", "--python", place, "--constraint", LOCK, *side.packages)
        installed.write_text(wanted)
    return place / "bin" / "python"


def find_nats_server() -> Path:
    """Return the binary of the NATS server, building it if needed."""
    place = DIRECTORY / NATS_SERVER.rpartition("@")[2]
    binary = place / "nats-server"
    if not binary.exists():
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
        if go is None:
            raise NotInstallableError("there is no Go toolchain to build the NATS server: run `apt-get install golang`")
        _run(go, "install", NATS_SERVER, GOBIN=str(place))
    return binary


def _find_uv() -> str:
    for candidate in (shutil.which("uv"), str(ROOT / ".uv" / "bin" / "uv")):
        # A shim may exist without a working uv behind it.
        if candidate and _works(candidate, "--version"):
            return candidate
    raise NotInstallableError("there is no uv to install it: run `make setup`")


def _works(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _run(*command: str | Path, **variables: str) -> None:
    environment = {**os.environ, **variables}
    words = " ".join(str(part) for part in command[1:3])
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise NotInstallableError(f"{words} took more than {_PATIENCE_SECONDS} seconds") from None
    if done.returncode:
        raise NotInstallableError(f"{words} failed: {done.stderr.strip()[-500:]}")
