"""Translate a Sandbox into options of bubblewrap."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import kingdom
from kingdom.errors import ProgramFailed
from kingdom.soldiers.sandbox.programs import TOOLCHAINS, user_home
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from kingdom.soldiers.sandbox.seccomp import build_filter

_UID = "1000"
_ROOT = Path("/")
# The sizes of /tmp and /dev/shm.
_TEMPORARY_BYTES = str(1 << 30)
_SHARED_MEMORY_BYTES = str(256 << 20)
# Without a sandbox a program only gets a pid namespace, so killing the program kills everything that it started.
_UNRESTRICTED = ("--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--die-with-parent")
_ISOLATED = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--cap-drop", "ALL"),
    *("--uid", _UID, "--gid", _UID, "--hostname", "soldier"),
    *("--proc", "/proc", "--dev", "/dev"),
    *("--size", _SHARED_MEMORY_BYTES, "--tmpfs", "/dev/shm"),  # noqa: S108 - private to the sandbox
    *("--size", _TEMPORARY_BYTES, "--perms", "1777", "--tmpfs", "/tmp", "--tmpfs", "/run"),  # noqa: S108 - as above
    *("--symlink", "/tmp", "/var/tmp", "--dir", "/etc"),  # noqa: S108 - as above
)
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store")
# Only the public parts of the certificates are listed, because the folders beside them hold private keys.
_ETC = (
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "mime.types"),
    *("protocols", "services", "os-release", "debian_version"),
    # Only the start-up files of Maven are listed, because its settings contain passwords of registries.
    *("java-*", "maven/m2.conf", "maven/logging", "maven/*.properties", "php", "fonts", "gitconfig"),
)
_HOSTS = "127.0.0.1 localhost soldier\n::1 localhost\n"
# If the host runs as root, its programs can write these files even without capabilities, so they are read-only.
_READ_ONLY_IN_PROC = ("sys", "fs", "irq", "bus", "sysrq-trigger")
_HIDDEN_IN_PROC = (
    *("acpi", "kcore", "keys", "kpagecgroup", "kpagecount", "kpageflags", "kmsg", "latency_stats", "mtrr"),
    *("pagetypeinfo", "sched_debug", "scsi", "slabinfo", "timer_list", "vmallocinfo"),
)


@contextmanager
def bubblewrap_options(sandbox: Sandbox, environment: Mapping[str, str]) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """Provide the options for a sandbox, and the descriptors that bubblewrap must inherit for them."""
    if sandbox.profile is SandboxProfile.OFF:
        yield [*_UNRESTRICTED], ()
        return
    texts = {"/etc/passwd": _passwd(environment), "/etc/group": f"agent:x:{_UID}:\n", "/etc/nsswitch.conf": _NSSWITCH}
    options = [*_ISOLATED, *_protect_proc(), *_bind_system(), *_bind_existing(_ETC, Path("/etc"))]
    if sandbox.profile is SandboxProfile.DEV:
        options += [
            "--share-net",
            *_bind_existing(("resolv.conf", "maven", "npmrc"), Path("/etc")),
            *_bind_toolchains(),
        ]
        texts["/etc/hosts"] = f"{_host_entries()}\n{_HOSTS}"
    else:
        texts["/etc/hosts"] = _HOSTS
    options += _bind_sandbox_paths(sandbox)
    for source, target in sandbox.overlays:
        options += ["--ro-bind", str(source), str(target)]
    for forward in sandbox.port_forwards:
        options += ["--ro-bind", str(forward.outside), forward.inside]
    descriptors: list[int] = []
    try:
        for file, text in texts.items():
            descriptors.append(_memory_file(text.encode()))
            options += ["--ro-bind-data", str(descriptors[-1]), file]
        if calls := build_filter():
            descriptors.append(_memory_file(calls))
            options += ["--seccomp", str(descriptors[-1])]
        # The root becomes read-only last, because nothing can be mounted afterwards.
        yield [*options, "--remount-ro", "/dev", "--remount-ro", "/"], tuple(descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


_NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"


def _passwd(environment: Mapping[str, str]) -> str:
    home = environment.get("HOME", "/")
    home = "/" if set(home) & {":", "\n"} else home
    return f"agent:x:{_UID}:{_UID}:agent:{home}:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"


def _protect_proc() -> Iterator[str]:
    """Yield options that make kernel settings read-only and hide what /proc reveals about the machine."""
    yield from _bind_existing(_READ_ONLY_IN_PROC, Path("/proc"))
    for name in _HIDDEN_IN_PROC:
        path = Path("/proc", name)
        if path.is_dir():
            yield from ("--tmpfs", str(path), "--remount-ro", str(path))
        elif path.exists():
            yield from ("--ro-bind", "/dev/null", str(path))


def _bind_system() -> Iterator[str]:
    """Yield options that mount the programs of the system, Python and Kingdom under their own paths."""
    for name in _SYSTEM:
        path = _ROOT / name
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for path in _python_folders():
        yield from ("--ro-bind", str(path), str(path))


def _python_folders() -> list[Path]:
    """Return the folders of Python and Kingdom, outer folders first."""
    program = Path(sys.executable).resolve()
    known = [Path(sys.prefix), Path(sys.base_prefix), Path(*kingdom.__path__), program.parent.parent]
    places = {place for path in known for place in (path.absolute(), path.resolve())}
    return sorted(place for place in places if not place.is_relative_to("/usr") and place != _ROOT)


def _bind_existing(names: Iterable[str], folder: Path) -> Iterator[str]:
    for name in names:
        for path in sorted(folder.glob(name)):
            if path.exists():
                yield from ("--ro-bind", str(path), str(path))


def _bind_toolchains() -> Iterator[str]:
    yield from _bind_existing(("opt",), _ROOT)
    yield from _bind_existing(TOOLCHAINS, user_home())


def _host_entries() -> str:
    file = Path("/etc/hosts")
    return file.read_text(errors="replace") if file.exists() else ""


def _bind_sandbox_paths(sandbox: Sandbox) -> Iterator[str]:
    """Yield options that mount the paths of the sandbox, outer folders first."""
    mounts = {path.absolute(): "--bind" for path in sandbox.writable}
    roots = sorted(mounts)
    mounts |= {path.absolute(): "--ro-bind" for path in sandbox.readable}
    for path in sorted(mounts, key=lambda each: (len(each.parts), each)):
        _reject_links(path, roots)
        yield from (mounts[path], str(path), str(path))


def _reject_links(path: Path, roots: Iterable[Path]) -> None:
    """Reject a path below a writable folder that is a link: bubblewrap would follow it out of the sandbox."""
    for root in roots:
        if path != root and path.is_relative_to(root) and path.resolve() != root.resolve() / path.relative_to(root):
            raise ProgramFailed(
                f"{path} is a link that an agent may have created to read files outside of its sandbox, so nothing is"
                " started there; inspect the link and remove it"
            )


def _memory_file(content: bytes) -> int:
    """Return the descriptor of an anonymous file with this content."""
    descriptor = os.memfd_create("kingdom")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
