"""The options of bubblewrap that make a Sandbox true."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import kingdom
from kingdom.errors import ProgramFailed
from kingdom.soldiers.sandbox.forbidden_calls import forbidden_calls
from kingdom.soldiers.sandbox.programs import TOOLCHAINS, user_home
from kingdom.soldiers.sandbox.sandbox import Profile, Sandbox

_UID = "1000"
_ROOT = Path("/")
_TEMPORARY_BYTES = str(1 << 30)
_MEMORY_BYTES = str(256 << 20)
# Everything as it is, but processes: this is what is left without a sandbox.
_OPEN = ("--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--die-with-parent")
_CLOSED = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--cap-drop", "ALL"),
    *("--uid", _UID, "--gid", _UID, "--hostname", "soldier"),
    *("--proc", "/proc", "--dev", "/dev", "--size", _MEMORY_BYTES, "--tmpfs", "/dev/shm"),  # noqa: S108 - it is its own
    *("--size", _TEMPORARY_BYTES, "--perms", "1777", "--tmpfs", "/tmp", "--tmpfs", "/run"),  # noqa: S108 - as above
    *("--symlink", "/tmp", "/var/tmp", "--dir", "/etc"),  # noqa: S108 - as above
)
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store")
# Of the certificates only what is public: the private keys beside them belong to the one who started us.
_ETC = (
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "mime.types"),
    *("protocols", "services", "os-release", "debian_version"),
    # Of Maven only what it starts with: its settings have the passwords of registries.
    *("java-*", "maven/m2.conf", "maven/logging", "maven/*.properties", "php", "fonts", "gitconfig"),
)
_HOSTS = "127.0.0.1 localhost soldier\n::1 localhost\n"
# The kernel lets the user who is root outside change its settings, whatever user and capabilities he has inside.
_SETTINGS = ("sys", "fs", "irq", "bus", "sysrq-trigger")
_NOT_SHOWN = (
    *("acpi", "kcore", "keys", "kpagecgroup", "kpagecount", "kpageflags", "kmsg", "latency_stats", "mtrr"),
    *("pagetypeinfo", "sched_debug", "scsi", "slabinfo", "timer_list", "vmallocinfo"),
)


@contextmanager
def enclosing(sandbox: Sandbox, environment: Mapping[str, str]) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """Give the options for a sandbox, and the open files that bubblewrap must inherit for them."""
    if sandbox.profile is Profile.OFF:
        yield [*_OPEN], ()
        return
    texts = {"/etc/passwd": _passwd(environment), "/etc/group": f"agent:x:{_UID}:\n", "/etc/nsswitch.conf": _NAMES}
    options = [*_CLOSED, *_kernel(), *_system(), *_files(_ETC, Path("/etc"))]
    if sandbox.profile is Profile.DEV:
        options += ["--share-net", *_files(("resolv.conf", "maven", "npmrc"), Path("/etc")), *_toolchains()]
        texts["/etc/hosts"] = f"{_known_hosts()}\n{_HOSTS}"
    else:
        texts["/etc/hosts"] = _HOSTS
    options += _mounts(sandbox)
    for seen, covered in sandbox.covers:
        options += ["--ro-bind", str(seen), str(covered)]
    for way in sandbox.ways_out:
        options += ["--ro-bind", str(way.outside), way.inside]
    kept: list[int] = []
    try:
        for file, text in texts.items():
            kept.append(_holding(text.encode()))
            options += ["--ro-bind-data", str(kept[-1]), file]
        if calls := forbidden_calls():
            kept.append(_holding(calls))
            options += ["--seccomp", str(kept[-1])]
        # Last: nothing can be laid out afterwards.
        yield [*options, "--remount-ro", "/dev", "--remount-ro", "/"], tuple(kept)
    finally:
        for descriptor in kept:
            os.close(descriptor)


_NAMES = "passwd: files\ngroup: files\nhosts: files dns\n"


def _passwd(environment: Mapping[str, str]) -> str:
    home = environment.get("HOME", "/")
    home = "/" if set(home) & {":", "\n"} else home
    return f"agent:x:{_UID}:{_UID}:agent:{home}:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"


def _kernel() -> Iterator[str]:
    """Yield what keeps the settings of the kernel as they are, and what it tells of the machine to itself."""
    yield from _files(_SETTINGS, Path("/proc"))
    for name in _NOT_SHOWN:
        path = Path("/proc", name)
        if path.is_dir():
            yield from ("--tmpfs", str(path), "--remount-ro", str(path))
        elif path.exists():
            yield from ("--ro-bind", "/dev/null", str(path))


def _system() -> Iterator[str]:
    """Yield what lays out the programs of the system, and Python with Kingdom, all under their own paths."""
    for name in _SYSTEM:
        path = _ROOT / name
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for path in _installed():
        yield from ("--ro-bind", str(path), str(path))


def _installed() -> list[Path]:
    """Return the folders that Python and Kingdom are in, those that contain others first."""
    program = Path(sys.executable).resolve()
    known = [Path(sys.prefix), Path(sys.base_prefix), Path(*kingdom.__path__), program.parent.parent]
    places = {place for path in known for place in (path.absolute(), path.resolve())}
    return sorted(place for place in places if not place.is_relative_to("/usr") and place != _ROOT)


def _files(names: Iterable[str], folder: Path) -> Iterator[str]:
    for name in names:
        for path in sorted(folder.glob(name)):
            if path.exists():
                yield from ("--ro-bind", str(path), str(path))


def _toolchains() -> Iterator[str]:
    yield from _files(("opt",), _ROOT)
    yield from _files(TOOLCHAINS, user_home())


def _known_hosts() -> str:
    file = Path("/etc/hosts")
    return file.read_text(errors="replace") if file.exists() else ""


def _mounts(sandbox: Sandbox) -> Iterator[str]:
    """Yield the folders of the program, inner ones after those that they lie in."""
    wanted = {path.absolute(): "--bind" for path in sandbox.writable}
    roots = sorted(wanted)
    wanted |= {path.absolute(): "--ro-bind" for path in sandbox.readable}
    for path in sorted(wanted, key=lambda each: (len(each.parts), each)):
        _refuse_links(path, roots)
        yield from (wanted[path], str(path), str(path))


def _refuse_links(path: Path, roots: Iterable[Path]) -> None:
    """Refuse what lies where an agent can put a link: bubblewrap would follow it out of the sandbox."""
    for root in roots:
        if path != root and path.is_relative_to(root) and path.resolve() != root.resolve() / path.relative_to(root):
            raise ProgramFailed(
                f"{path} is a link, which an agent may have put there to see what lies elsewhere: it is not started;"
                " look at it and remove it"
            )


def _holding(content: bytes) -> int:
    """Return an open file with this content."""
    descriptor = os.memfd_create("kingdom")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
