"""Read, check and install packages of Generals, which are folders of files. A broken package disables only itself."""

import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from kingdom.court.memory import lock_memory
from kingdom.court.package import General, GeneralPolicy, Package, PetitionRule, Schedule, Subscription
from kingdom.court.prompt import PROMPT_BYTES_MAX, find_placeholder_errors, needs_repo
from kingdom.errors import IllegalTransition, KingdomError, Misconfigured
from kingdom.workflow.model.resources.template import TaskDefinition, WorkflowTemplate
from kingdom.workflow.template_file import read_template
from kingdom.yaml_file import place_in, read_yaml

GENERAL_FILE, WORKFLOW_FILE, MEMORY = "general.yaml", "workflow.yaml", "memory"
# The Generals that come with Kingdom.
SHIPPED = Path(__file__).parents[1] / "generals"
_PREFIX = "gen-"
# The prefix of all GitHub event types.
_GITHUB = "github."
_PROMPT_FILE = re.compile(r"prompts/\S+")
# The types of the blocks in general.yaml, for errors that say what a block may contain.
_BLOCK_TYPES: dict[str, type[msgspec.Struct]] = {
    "subscribes": Subscription,
    "schedules": Schedule,
    "policy": GeneralPolicy,
    "petitions": PetitionRule,
}
_NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__")


class BrokenPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package that cannot be used, and why."""

    name: str
    directory: str
    reason: str


class LoadedPackages(msgspec.Struct, frozen=True, kw_only=True):
    """The packages of a directory, in the order in which events are offered to them."""

    packages: tuple[Package, ...] = ()
    broken: tuple[BrokenPackage, ...] = ()


def load_packages(directory: Path, *, accepts_strangers: bool = False) -> LoadedPackages:
    """Read every package of a directory. `accepts_strangers` means that events of any GitHub repository arrive."""
    packages: list[Package] = []
    broken: list[BrokenPackage] = []
    for folder in _folders(directory):
        try:
            packages.append(load_package(folder, accepts_strangers=accepts_strangers))
        except KingdomError as error:
            broken.append(BrokenPackage(name=folder.name, directory=str(folder), reason=str(error)))
    packages.sort(key=lambda package: (package.general.order, package.name))
    return _without_duplicate_schedules(packages, broken)


def load_package(folder: Path, *, accepts_strangers: bool = False) -> Package:
    """Read one package, or raise Misconfigured."""
    source = folder / GENERAL_FILE
    text = _read(folder, GENERAL_FILE)
    general = read_general(text, str(source))
    if general.name != folder.absolute().name:
        raise Misconfigured(f"{source}: name is {general.name!r}: give its folder the same name, or change the name")
    if accepts_strangers:
        _refuse_every_repository(general, text, source)
    workflow = folder / WORKFLOW_FILE
    template = read_template(_read(folder, WORKFLOW_FILE), str(workflow), template_id=general.name)
    template = _with_prompts(template, folder)
    if needs_repo(template) and not general.default_repo:
        for schedule in general.schedules:
            if not schedule.repo:
                raise Misconfigured(
                    f"{source}: schedule {schedule.name} has no repository to work in: give it a repo,"
                    " or the General a default_repo"
                )
    for name in (MEMORY, *general.memory):
        _refuse_outside(folder, name, source)
    return Package(general=general, template=template, directory=str(folder.absolute()))


def read_general(text: str, source: str) -> General:
    """Read the text of a file general.yaml, or raise Misconfigured. `source` is its name in errors."""
    return read_yaml(text, source, General, _BLOCK_TYPES)


def read_files(package: Package) -> dict[str, str]:
    """Return the text of each file that defines a General, by its name. A file that cannot be read is left out."""
    folder = Path(package.directory)
    prompts = sorted(str(path.relative_to(folder)) for path in (folder / "prompts").rglob("*") if path.is_file())
    found = {}
    for name in (GENERAL_FILE, WORKFLOW_FILE, *prompts):
        with suppress(Misconfigured):
            found[name] = _read(folder, name)
    return found


def install_package(source: Path, directory: Path, *, replace: bool) -> Package:
    """Copy a package into a directory of packages, never visible in part. The memory of a replaced package is kept."""
    package = load_package(source)
    target, backup = directory / package.name, directory / f".{package.name}.replaced"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if backup.exists() and not target.exists():
            # An earlier installation was killed between its two renames.
            backup.rename(target)
        _refuse_install(package, source, target, replace=replace)
        with TemporaryDirectory(prefix=".installing-", dir=directory) as temporary:
            copy = Path(temporary) / package.name
            shutil.copytree(source, copy, symlinks=True, ignore=_NOT_COPIED)
            # What a run learns after the copy of the memory would be lost.
            with lock_memory(target):
                if (target / MEMORY).is_dir():
                    shutil.copytree(target / MEMORY, copy / MEMORY, symlinks=True, dirs_exist_ok=True)
                make_private(copy)
                load_package(copy)
                _put_in_place(copy, target, backup)
    except OSError as error:
        raise Misconfigured(f"cannot install {package.name} in {directory}: {error}") from error
    return load_package(target)


def make_private(folder: Path) -> None:
    """Make a folder and its contents inaccessible to other accounts, since copied files keep their permissions."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & stat.S_IRWXU)


def find_shipped_package(name: str) -> Path | None:
    """Return the folder of a General that comes with Kingdom, or None."""
    return next((folder for folder in _folders(SHIPPED) if folder.name == name), None)


def _refuse_every_repository(general: General, text: str, source: Path) -> None:
    """Refuse a GitHub subscription without `repos`, which would accept events of every repository on GitHub."""
    for number, subscription in enumerate(general.subscribes):
        if subscription.may_match_type(_GITHUB) and not subscription.repos:
            place = place_in(text, str(source), ("subscribes", number))
            raise Misconfigured(
                f"{place}: {subscription.type} would accept events of every repository on GitHub, including those of"
                ' strangers: add a line `repos: ["OWNER/*"]` to this subscription, or name the owners for all Generals'
                " in kingdom.yaml, under sentinel: github: repos"
            )


def _refuse_install(package: Package, source: Path, target: Path, *, replace: bool) -> None:
    if target.is_symlink():
        raise Misconfigured(f"{target} is a link: change the package that it points to, or remove the link")
    if target.exists():
        if target.samefile(source):
            raise Misconfigured(f"{source} is where {package.name} is installed: edit it there")
        if not replace:
            allowed = ("--replace",)
            raise IllegalTransition(f"general {package.name}", "INSTALLED", f"{target} would be overwritten", allowed)
    others = [other for other in load_packages(target.parent).packages if other.name != package.name]
    for broken in _without_duplicate_schedules([*others, package], []).broken:
        raise Misconfigured(broken.reason)


def _put_in_place(copy: Path, target: Path, backup: Path) -> None:
    shutil.rmtree(backup, ignore_errors=True)
    if target.exists():
        target.rename(backup)
    try:
        copy.rename(target)
    except OSError:
        if backup.exists():
            backup.rename(target)
        raise
    shutil.rmtree(backup, ignore_errors=True)


def _folders(directory: Path) -> Iterator[Path]:
    found = sorted(directory.iterdir()) if directory.is_dir() else []
    return (folder for folder in found if folder.name.startswith(_PREFIX) and not folder.is_file())


def _without_duplicate_schedules(packages: list[Package], broken: list[BrokenPackage]) -> LoadedPackages:
    """Return the packages. A package with the schedule name of an earlier package counts as broken."""
    owners: dict[str, str] = {}
    kept: list[Package] = []
    for package in packages:
        taken = [schedule.name for schedule in package.general.schedules if schedule.name in owners]
        if taken:
            reason = (
                f"{package.directory}/{GENERAL_FILE}: schedule {taken[0]} already belongs to {owners[taken[0]]}:"
                " give it another name"
            )
            broken.append(BrokenPackage(name=package.name, directory=package.directory, reason=reason))
            continue
        owners |= {schedule.name: package.name for schedule in package.general.schedules}
        kept.append(package)
    return LoadedPackages(packages=tuple(kept), broken=tuple(sorted(broken, key=lambda each: each.name)))


def _with_prompts(template: WorkflowTemplate, folder: Path) -> WorkflowTemplate:
    """Return the template with its prompt files read and every prompt checked."""

    def read(task: TaskDefinition, place: str) -> TaskDefinition:
        source, query = f"{folder / WORKFLOW_FILE}: {place}, line ", task.query.strip()
        if _PROMPT_FILE.fullmatch(query):
            if not query.endswith(".md"):
                raise Misconfigured(
                    f"{folder / WORKFLOW_FILE}: {place}: a prompt file must be a .md file, such as prompts/review.md"
                )
            source, query = f"{folder / query}:", _read(folder, query)
        else:
            query = task.query
        for line, words in find_placeholder_errors(query):
            raise Misconfigured(f"{source}{line}: {words}")
        if not query.strip():
            raise Misconfigured(f"{source}1: the prompt is empty: say what the agent should do")
        return msgspec.structs.replace(task, query=query)

    works = tuple(
        msgspec.structs.replace(
            work, tasks=tuple(read(task, f"works[{i}].tasks[{j}].query") for j, task in enumerate(work.tasks))
        )
        for i, work in enumerate(template.works)
    )
    return msgspec.structs.replace(template, works=works)


def _read(folder: Path, name: str) -> str:
    """Return the text of a file of the package."""
    file = folder / name
    _refuse_outside(folder, name, file)
    try:
        if not file.is_file():
            raise Misconfigured(f"{file} is missing: the package needs it")
        size = file.stat().st_size
        if size > PROMPT_BYTES_MAX:
            raise Misconfigured(f"{file} has {size} bytes, at most {PROMPT_BYTES_MAX} are allowed: make it shorter")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Misconfigured(f"{file} is not UTF-8: {error}") from error
    except OSError as error:
        raise Misconfigured(f"{file} cannot be read: {error.strerror}") from error


def _refuse_outside(folder: Path, name: str, source: Path) -> None:
    try:
        inside = (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        # The links of the path form a loop.
        inside = False
    if not inside:
        raise Misconfigured(f"{source}: {name} points outside the package: keep the files of a package inside it")
