"""Check the configuration: the environment, `kingdom.yaml`, its secrets, and the Generals."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kingdom.bootstrap import generals_directory_of
from kingdom.court.package_files import load_packages
from kingdom.doctor.check import CheckResult, fail, ok, run_in_thread, skipped, warn
from kingdom.doctor.context import CheckContext
from kingdom.realm import SECRETS, Realm, secrets_of
from kingdom.settings import FILE

_ENVIRONMENT, _FILE = "env:", "file:"
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


async def check_environment(context: CheckContext) -> CheckResult:
    """Check the environment variables of Kingdom."""
    if context.environment_error:
        return fail(context.environment_error, "correct or unset that variable")
    if context.is_overridden:
        found = f"KINGDOM_DATABASE_URL names another store than {context.settings.file}, and takes precedence"
        return warn(found, f"unset KINGDOM_DATABASE_URL, or write it into {context.settings.file}")
    return ok("the variables of Kingdom are valid")


async def check_settings_file(context: CheckContext) -> CheckResult:
    """Check whether the settings file and its secrets can be read."""
    if context.settings.file is None:
        return warn(f"there is no {FILE} in this directory, so defaults apply", "kingdom init")
    if context.file_error:
        return fail(context.file_error, f"correct it, then: kingdom config check {context.settings.file}")
    return ok(f"{context.settings.file} and every secret that it names can be read")


async def check_secrets(context: CheckContext) -> CheckResult:
    """Check for secrets in the settings file itself, and for secret files that other users can read."""
    if context.settings.file is None or context.file_error:
        return skipped("there are no settings to read")
    source = context.settings.file
    return await run_in_thread(lambda: _check_secrets(source, context.settings.base_directory))


async def check_generals(context: CheckContext) -> CheckResult:
    """Check whether there are Generals, and whether one of them is broken."""
    folder, accepts_strangers = (
        generals_directory_of(context.settings, context.realm),
        context.realm.sentinel.accepts_strangers,
    )
    loaded = await run_in_thread(lambda: load_packages(folder, accepts_strangers=accepts_strangers))
    if loaded.broken:
        first = loaded.broken[0]
        return fail(f"{first.name} is broken and does nothing: {first.reason}", f"kingdom general validate {folder}")
    if not loaded.packages:
        return warn(f"there is no General in {folder}, so no event starts work", "kingdom general install gen-hello")
    return ok(", ".join(package.name for package in loaded.packages))


def _check_secrets(source: Path, base_directory: Path) -> CheckResult:
    document = yaml.safe_load(source.read_text(encoding="utf-8")) or {}
    secrets = dict(_find_secrets(document))
    for path, value in secrets.items():
        if not value.startswith((_ENVIRONMENT, _FILE)):
            name = path.rpartition(".")[2]
            fix = f"move it to a file of mode 600, and write in {source.name}: {name}: file:secrets/NAME"
            return warn(f"{path} is written in {source} itself", fix)
        file = base_directory / value.removeprefix(_FILE)
        if value.startswith(_FILE) and file.stat().st_mode & _READABLE_BY_OTHERS:
            return warn(f"other users of this machine can read {file}", f"chmod 600 {file}")
    if secrets_of(Realm(database_url=document.get("database_url", ""))):
        fix = f"move the whole URL to an environment variable, and write in {source.name}: database_url: env:NAME"
        return warn(f"database_url in {source} contains a password", fix)
    if not secrets:
        return ok("none is needed")
    named, them = ("1 secret is", "it") if len(secrets) == 1 else (f"{len(secrets)} secrets are", "them")
    return ok(f"{named} named, and no other user can read {them}")


def _find_secrets(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and value of every secret in a settings document."""
    name = path.rpartition(".")[2].partition("[")[0]
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _find_secrets(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _find_secrets(item, f"{path}[{number}]")
    elif isinstance(value, str) and name in SECRETS:
        yield path, value
