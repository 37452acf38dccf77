"""Registries of package managers and a git server as files, which any web server can serve."""

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

from tests.integration.soldiers.sources import make_source, run

PACKAGE, VERSION = "kingdom-sample", "1.0.0"


def write_registries(folder: Path, url: str) -> None:
    """Write a package for pip, npm and cargo, and a repository, as they are served at a URL."""
    _write_pip(folder / "pip")
    _write_npm(folder / "npm", f"{url}/npm")
    _write_cargo(folder / "cargo", f"{url}/cargo")
    _write_git(folder / "git")


def _write_pip(folder: Path) -> None:
    name = PACKAGE.replace("-", "_")
    about = f"{name}-{VERSION}.dist-info"
    files = {
        f"{name}.py": "ORIGIN = 'registry'\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    page = folder / "simple" / PACKAGE / "index.html"
    page.parent.mkdir(parents=True)
    wheel = f"{name}-{VERSION}-py3-none-any.whl"
    page.write_text(f'<!DOCTYPE html><a href="{wheel}">{wheel}</a>\n')
    with zipfile.ZipFile(page.with_name(wheel), "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)


def _write_npm(folder: Path, url: str) -> None:
    about = {"name": PACKAGE, "version": VERSION, "main": "index.js"}
    files = {"package/package.json": json.dumps(about), "package/index.js": "module.exports = 'registry';\n"}
    tarball = _tarball(files)
    folder.mkdir()
    (folder / "sample.tgz").write_bytes(tarball)
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(tarball).digest()).decode()}"
    version = {**about, "dist": {"tarball": f"{url}/sample.tgz", "integrity": integrity}}
    document = {"name": PACKAGE, "dist-tags": {"latest": VERSION}, "versions": {VERSION: version}}
    (folder / PACKAGE).write_text(json.dumps(document))


def _write_cargo(folder: Path, url: str) -> None:
    manifest = f'[package]\nname = "{PACKAGE}"\nversion = "{VERSION}"\nedition = "2021"\n'
    top = f"{PACKAGE}-{VERSION}"
    crate = _tarball({f"{top}/Cargo.toml": manifest, f"{top}/src/lib.rs": "pub const ORIGIN: u8 = 1;\n"})
    entry = folder / "index" / PACKAGE[:2] / PACKAGE[2:4] / PACKAGE
    entry.parent.mkdir(parents=True)
    (folder / "index" / "config.json").write_text(json.dumps({"dl": f"{url}/{{crate}}.crate"}))
    (folder / f"{PACKAGE}.crate").write_bytes(crate)
    known = {"name": PACKAGE, "vers": VERSION, "deps": [], "features": {}, "yanked": False}
    entry.write_text(json.dumps({**known, "cksum": hashlib.sha256(crate).hexdigest()}) + "\n")


def _write_git(folder: Path) -> None:
    source = make_source(folder.with_name("source"), files=1)
    run("clone", "--quiet", "--bare", str(source), str(folder / "sample.git"), cwd=folder.parent)
    run("update-server-info", cwd=folder / "sample.git")


def _tarball(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()
