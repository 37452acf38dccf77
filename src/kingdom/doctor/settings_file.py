"""What a person has written: the environment, `kingdom.yaml`, the secrets that it names, and the Generals."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kingdom.bootstrap import generals_directory_of
from kingdom.court.package_files import load_packages
from kingdom.doctor.check import Verdict, fail, in_thread, ok, skipped, warn
from kingdom.doctor.patient import Patient
from kingdom.realm import SECRETS, Realm, secrets_of
from kingdom.settings import FILE

_ENVIRONMENT, _FILE = "env:", "file:"
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


async def environment(patient: Patient) -> Verdict:
    """Look whether the variables of Kingdom make sense."""
    if patient.environment_trouble:
        return fail(patient.environment_trouble, "correct or unset that variable")
    if patient.is_elsewhere:
        found = f"KINGDOM_DATABASE_URL names another store than {patient.settings.file}, and comes first"
        return warn(found, f"unset KINGDOM_DATABASE_URL, or write it into {patient.settings.file}")
    return ok("the variables of Kingdom make sense")


async def file(patient: Patient) -> Verdict:
    """Look whether the file of settings can be read, secrets included."""
    if patient.settings.file is None:
        return warn(f"there is no {FILE} in this directory: defaults count", "kingdom init")
    if patient.file_trouble:
        return fail(patient.file_trouble, f"correct it, then: kingdom config check {patient.settings.file}")
    return ok(f"{patient.settings.file} can be read, and every secret that it names is there")


async def secrets(patient: Patient) -> Verdict:
    """Look for secrets that others can read: those written into the file itself, and files that are open to others."""
    if patient.settings.file is None or patient.file_trouble:
        return skipped("there are no settings to read")
    source = patient.settings.file
    return await in_thread(lambda: _secrets(source, patient.settings.beside))


async def generals(patient: Patient) -> Verdict:
    """Look whether there are Generals, and whether one of them is broken."""
    place, hears_strangers = (
        generals_directory_of(patient.settings, patient.realm),
        patient.realm.sentinel.hears_strangers,
    )
    loaded = await in_thread(lambda: load_packages(place, hears_strangers=hears_strangers))
    if loaded.broken:
        first = loaded.broken[0]
        return fail(f"{first.name} is broken and does nothing: {first.reason}", f"kingdom general validate {place}")
    if not loaded.packages:
        return warn(f"there is none in {place}: nothing that happens is acted on", "kingdom general install gen-hello")
    return ok(", ".join(package.name for package in loaded.packages))


def _secrets(source: Path, beside: Path) -> Verdict:
    document = yaml.safe_load(source.read_text(encoding="utf-8")) or {}
    named = dict(_named(document))
    for path, said in named.items():
        if not said.startswith((_ENVIRONMENT, _FILE)):
            fix = f"put it into a file of mode 600, and write there: {path.rpartition('.')[2]}: file:secrets/NAME"
            return warn(f"{path} stands in {source} itself", fix)
        place = beside / said.removeprefix(_FILE)
        if said.startswith(_FILE) and place.stat().st_mode & _READABLE_BY_OTHERS:
            return warn(f"others on this machine can read {place}", f"chmod 600 {place}")
    if secrets_of(Realm(database_url=document.get("database_url", ""))):
        fix = "put all of it into an environment variable, and write there: database_url: env:NAME"
        return warn(f"a password stands in database_url of {source}", fix)
    return ok(f"{len(named)} named, none written down where others can read it" if named else "none is needed")


def _named(said: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every secret that a file names, by its place."""
    name = path.rpartition(".")[2].partition("[")[0]
    if isinstance(said, dict):
        for key, value in said.items():
            yield from _named(value, f"{path}.{key}".lstrip("."))
    elif isinstance(said, list):
        for number, value in enumerate(said):
            yield from _named(value, f"{path}[{number}]")
    elif isinstance(said, str) and name in SECRETS:
        yield path, said
