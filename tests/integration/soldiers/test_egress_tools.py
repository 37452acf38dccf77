"""pip, npm, cargo and git in a strict sandbox, with registries on public addresses of a private network."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kingdom.soldiers.sandbox.programs import user_home
from tests.integration.soldiers.egress_world import BELOW, INNER, NAMED, OTHER
from tests.integration.soldiers.registries import PACKAGE
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]
# A normal user becomes root of a user namespace, which may create the other two.
UNSHARE = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--net", "--mount"]


def why_not() -> str:
    """Return why no network namespace can be created here."""
    for program in ("bwrap", "unshare", "ip", "openssl"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    tried = subprocess.run([*UNSHARE, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    return f"no network namespace can be made: {tried.stderr}" if tried.returncode else ""


pytestmark = [pytest.mark.agents, pytest.mark.skipif(bool(reason := why_not()), reason=reason or "-")]


@dataclass(frozen=True)
class Fetched:
    """The output of an agent and the log of its proxy."""

    printed: str
    attempts: list[list[str]]

    def opened(self) -> set[str]:
        return {host for outcome, host, _ in self.attempts if outcome == "opened"}

    def refused(self) -> dict[str, str]:
        return {host: reason for outcome, host, reason in self.attempts if outcome == "refused"}


def fetch(folder: Path, command: str, *path: Path) -> Fetched:
    world = [sys.executable, "-m", "tests.integration.soldiers.egress_world", str(folder), command, *map(str, path)]
    ended = subprocess.run(
        [*UNSHARE, *world], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return Fetched(**json.loads(ended.stdout.splitlines()[-1]))


def test_pip_installs_from_a_named_host_and_from_no_other(tmp_path: Path) -> None:
    python = next((path for path in (f"{sys.base_prefix}/bin/python3", "/usr/bin/python3") if _has_pip(path)), None)
    if python is None:
        pytest.skip("pip is not installed")
    install = f"{python} -m pip install --quiet --no-cache-dir --retries 0 --disable-pip-version-check --target"
    fetched = fetch(
        tmp_path,
        f"{install} here --index-url https://{NAMED}/pip/simple {PACKAGE}\n"
        f"PYTHONPATH=here {python} -c 'import kingdom_sample; print(kingdom_sample.ORIGIN)'\n"
        f"! {install} there --index-url https://{OTHER}/pip/simple {PACKAGE} >&2",
    )
    assert fetched.printed == "registry"
    assert fetched.opened() == {NAMED}
    assert OTHER in fetched.refused()


def test_npm_installs_from_a_named_host_and_from_no_other(tmp_path: Path) -> None:
    if not Path("/usr/bin/npm").exists():
        pytest.skip("npm is not installed in /usr/bin")
    install = "npm install --no-audit --no-fund --loglevel=error --fetch-retries=0 --prefix"
    fetched = fetch(
        tmp_path,
        f"{install} here --registry https://{NAMED}/npm/ {PACKAGE} >&2\n"
        f"cd here && node -p 'require(\"{PACKAGE}\")' && cd ..\n"
        f"! {install} there --registry https://{OTHER}/npm/ {PACKAGE} >&2",
    )
    assert fetched.printed == "registry"
    assert fetched.opened() == {NAMED}
    assert OTHER in fetched.refused()


def test_cargo_fetches_from_a_named_host_and_from_no_other(tmp_path: Path) -> None:
    toolchains = sorted(user_home().glob(".rustup/toolchains/*/bin/cargo"))
    cargo = toolchains[-1] if toolchains else Path("/usr/bin/cargo")
    if not cargo.exists():
        pytest.skip("cargo is not installed")
    registries = f"[registries.one]\nindex = 'sparse+https://{NAMED}/cargo/index/'\n"
    registries += f"[registries.two]\nindex = 'sparse+https://{OTHER}/cargo/index/'\n[net]\nretry = 0\n"
    package = f"[package]\nname = 'app'\nversion = '0.1.0'\nedition = '2021'\n[dependencies.{PACKAGE}]\nversion = '1'\n"
    fetched = fetch(
        tmp_path,
        f'mkdir -p .cargo src && touch src/lib.rs && echo "{registries}" > .cargo/config.toml\n'
        f"echo \"{package}registry = 'one'\" > Cargo.toml && cargo fetch >&2\n"
        "ls $HOME/.cargo/registry/cache/*/\n"
        f"echo \"{package}registry = 'two'\" > Cargo.toml && rm Cargo.lock && ! cargo fetch >&2",
        cargo.parent,
    )
    assert fetched.printed == f"{PACKAGE}-1.0.0.crate"
    assert fetched.opened() == {NAMED}
    assert OTHER in fetched.refused()


def test_git_clones_from_named_hosts_and_from_no_other(tmp_path: Path) -> None:
    clone = "git clone --quiet https://{}/git/sample.git"
    fetched = fetch(
        tmp_path,
        f"{clone.format(NAMED)} one\n{clone.format(BELOW)} two\ncat one/file0.txt two/file0.txt\n"
        f"! {clone.format(OTHER)} three\n! {clone.format(INNER)} four\n"
        # Without the proxy there is no network at all.
        f"! env -u https_proxy -u HTTPS_PROXY {clone.format(NAMED)} five",
    )
    assert len(fetched.printed.splitlines()) == 2
    assert fetched.opened() == {NAMED, BELOW}
    assert fetched.refused()[OTHER] == f"{OTHER} is not in soldiers.egress of kingdom.yaml"
    assert fetched.refused()[INNER] == f"{INNER} leads to 10.1.2.3, which is not a public address"


def _has_pip(python: str) -> bool:
    if not Path(python).exists():
        return False
    return subprocess.run([python, "-m", "pip", "-V"], capture_output=True, check=False).returncode == 0
