"""A password for git is in no argument of a process, and git runs no program of Git LFS."""

import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kingdom.soldiers.checkouts.git import GitFailed, extract_credentials, run_git
from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from tests.integration.soldiers.sources import a_tree, files_of, make_source, run

USER, PASSWORD = "ada@acme", "open sesame %2F"
ADDRESS = "http://ada%40acme:open%20sesame%20%252F@127.0.0.1"


class Guarded(SimpleHTTPRequestHandler):
    """Serves files to clients with the password, and records processes whose arguments contain it."""

    leaks: list[str]
    seen: set[str]
    credentials: str

    def do_GET(self) -> None:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = file.read_bytes().decode(errors="replace")
                self.seen.update({"remote-http"} if "remote-http" in words else ())
                if "sesame" in words:
                    self.leaks.append(words.replace("\0", " "))
        if self.headers.get("Authorization") == f"Basic {b64encode(self.credentials.encode()).decode()}":
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="here"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "app")


@pytest.fixture
def server(source: Path) -> Iterator[ThreadingHTTPServer]:
    run("update-server-info", cwd=source)
    Guarded.leaks, Guarded.seen, Guarded.credentials = [], set(), f"{USER}:{PASSWORD}"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Guarded, directory=str(source / ".git"))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_the_password_of_an_address_is_in_no_argument_of_any_process(
    tmp_path: Path, source: Path, server: ThreadingHTTPServer
) -> None:
    host, home = tmp_path / "host", tmp_path / "home"
    home.mkdir()
    # A credential helper of the operator that records its input; it must not be called.
    (home / ".gitconfig").write_text(f"[credential]\n\thelper = store --file={tmp_path}/stored\n")
    tree = a_tree(host, source, url=f"{ADDRESS}:{server.server_port}/")
    await RunCheckouts(host / "repositories", home=home).prepare([tree])
    assert files_of(tree.path) == files_of(source)
    assert (Guarded.leaks, Guarded.seen) == ([], {"remote-http"})
    assert not (tmp_path / "stored").exists()


async def test_a_wrong_password_is_refused_and_not_shown(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    with pytest.raises(GitFailed) as failed:
        await run_git(
            "ls-remote", "--", f"http://ada:sesame2@127.0.0.1:{server.server_port}/", cwd=tmp_path, home=tmp_path
        )
    assert "sesame" not in str(failed.value)
    assert Guarded.leaks == []


async def test_a_token_without_a_user_is_in_no_argument_and_no_error(
    tmp_path: Path, source: Path, server: ThreadingHTTPServer
) -> None:
    Guarded.credentials = "sesame-token:"
    host = tmp_path / "host"
    tree = a_tree(host, source, url=f"http://sesame-token@127.0.0.1:{server.server_port}/")
    await RunCheckouts(host / "repositories").prepare([tree])
    assert files_of(tree.path) == files_of(source)
    with pytest.raises(GitFailed) as failed:
        await run_git(
            "ls-remote", "--", f"http://sesame-old@127.0.0.1:{server.server_port}/", cwd=tmp_path, home=tmp_path
        )
    assert "sesame" not in str(failed.value)
    assert (Guarded.leaks, Guarded.seen) == ([], {"remote-http"})


async def test_a_configured_helper_knows_the_password_of_the_user_in_an_address(
    tmp_path: Path, source: Path, server: ThreadingHTTPServer
) -> None:
    home, port = tmp_path / "home", server.server_port
    home.mkdir()
    (home / ".gitconfig").write_text(f"[credential]\n\thelper = store --file={tmp_path}/stored\n")
    others = f"http://bob:wrong@127.0.0.1%3a{port}\n"
    (tmp_path / "stored").write_text(f"{others}{ADDRESS.replace('127.0.0.1', f'127.0.0.1%3a{port}')}\n")
    tree = a_tree(tmp_path / "host", source, url=f"http://ada%40acme@127.0.0.1:{port}/")
    await RunCheckouts(tmp_path / "host" / "repositories", home=home).prepare([tree])
    assert files_of(tree.path) == files_of(source)


@pytest.mark.parametrize("address", ["https://example.org/a@b", "git@example.org:app", "/a/b", "ssh://a:b@c/d"])
def test_an_address_without_a_user_for_http_stays_unchanged(address: str) -> None:
    assert extract_credentials(("fetch", "--", address)) == (["fetch", "--", address], {})


async def test_git_lfs_is_never_run_regardless_of_its_configuration(tmp_path: Path, source: Path) -> None:
    home, ran = tmp_path / "home", tmp_path / "ran"
    home.mkdir()
    program = f"touch {ran}; cat"
    names = "".join(f'\t{name} = "{program}"\n' for name in ("clean", "smudge", "process"))
    (home / ".gitconfig").write_text(f'[filter "lfs"]\n{names}\trequired = true\n')
    (source / ".gitattributes").write_text("*.bin filter=lfs\n")
    (source / ".lfsconfig").write_text("[lfs]\n\turl = http://127.0.0.1:1/\n")
    (source / "large.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    run("add", "--all", cwd=source)
    run("commit", "--quiet", "-m", "large", cwd=source)
    trees, tree = RunCheckouts(tmp_path / "host" / "repositories", home=home), a_tree(tmp_path / "host", source)
    await trees.prepare([tree])
    assert files_of(tree.path) == files_of(source)
    (tree.path / "new.bin").write_text("new\n")
    await trees.commit([tree], "new")
    assert not ran.exists()


async def test_git_ignores_the_configuration_of_the_machine(tmp_path: Path) -> None:
    shown = await run_git("config", "--list", "--show-scope", cwd=tmp_path, home=tmp_path)
    assert "command\t" in shown
    assert "system\t" not in shown
