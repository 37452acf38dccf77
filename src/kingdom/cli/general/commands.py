"""`kingdom general …`: manage Generals, each a folder with general.yaml, workflow.yaml and prompts."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from kingdom.actions.generals import to_listed_generals, work_names
from kingdom.cli.framework import exit_code, inputs
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import one
from kingdom.cli.general import memory
from kingdom.cli.general.lookup import (
    GeneralName,
    GeneralsDirectory,
    accepts_strangers,
    generals_directory,
    named_package,
)
from kingdom.cli.general.preview_values import git_of, preview_context
from kingdom.cli.schemas.described import print_schema
from kingdom.cli.schemas.general import general_schema
from kingdom.court.package import NAME_PATTERN, Package, PetitionRule
from kingdom.court.package_files import (
    GENERAL_FILE,
    SHIPPED,
    BrokenPackage,
    LoadedPackages,
    find_shipped_package,
    install_package,
    load_package,
    load_packages,
)
from kingdom.court.prompt import missing_values, needs_repo, render_template
from kingdom.errors import IllegalTransition, Misconfigured, NotFound
from kingdom.soldiers.agents.port import AgentFailed
from kingdom.soldiers.agents.scripted.script import parse_script
from kingdom.views.generals import ListedGenerals, Preview
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.template_file import write_template

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Manage the Generals: which events each one handles, and how."
)
_EXAMPLE = "gen-hello"


@command(app, "list", result=one(ListedGenerals))
async def list_(call: CommandCall, *, directory: GeneralsDirectory = "") -> None:
    """List every General, including broken ones.

    Example: kingdom general list

    JSON: {directory, generals: [{name, description, subscribes: [type], schedules: [name], works: [name], directory}],
    broken: [{name, directory, reason}]}.
    """
    place = generals_directory(call, directory)
    loaded = load_packages(place, accepts_strangers=accepts_strangers(call))
    if call.output.json:
        call.output.document(to_listed_generals(place, loaded))
        return
    if loaded.packages:
        columns = ("name", "handles", "schedules", "works", "what it does")
        call.output.table(columns, [_row(package) for package in loaded.packages])
    elif not loaded.broken:
        shipped_ones = ", ".join(package.name for package in load_packages(SHIPPED).packages)
        call.output.say(f"There is no General in {place}. Create one: kingdom general create NAME")
        call.output.say(f"Or install one that comes with Kingdom: kingdom general install NAME ({shipped_ones})")
    for broken in loaded.broken:
        call.output.note(f"{broken.name} is broken and does nothing: {broken.reason}")


@command(app, "show", result=one(Package))
async def show(call: CommandCall, name: GeneralName, *, directory: GeneralsDirectory = "") -> None:
    """Show which events a General handles, when it acts, what it may do, and what it runs.

    Example: kingdom general show gen-pr

    JSON: {general: the content of general.yaml, template: as `kingdom template show` prints it, directory}.
    """
    package = named_package(call, name, directory)
    if call.output.json:
        call.output.document(package)
        return
    general, policy = package.general, package.general.policy
    rows = {
        "name": general.name,
        "what it does": general.description,
        "directory": package.directory,
        "handles": "\n".join(each.type + (" (also)" if each.also else "") for each in general.subscribes) or None,
        "schedules": "\n".join(f"{each.name}: {each.cron} {each.time_zone}" for each in general.schedules) or None,
        "default repo": general.default_repo,
        "works": "\n".join(work_names(package)),
        "may ask for": "\n".join(map(_petition_rule, policy.petitions)) or "nothing",
        "retries": f"{policy.retries}, {policy.retry_after_seconds} s apart",
        "budget": f"${policy.budget_usd:g}" if policy.budget_usd else None,
        "at once": policy.concurrency,
        "time limit": f"{general.timeout_seconds} s",
    }
    call.output.table(("general", ""), rows.items())


app.add_typer(memory.app)


@command(app, "preview", result=one(Preview))
async def preview(
    call: CommandCall,
    name: GeneralName,
    *,
    payload: Annotated[str, typer.Option(help="The payload of an event: JSON, @FILE, or - for standard input.")] = "{}",
    repo: Annotated[str, typer.Option(help="The repository of the event, such as acme/shop.")] = "",
    event_type: Annotated[str, typer.Option("--type", help="The type of the event.")] = "demo.preview",
    directory: GeneralsDirectory = "",
) -> None:
    """Print the workflow that a General would run for an event, with the values filled in; nothing runs.

    Example: kingdom general preview gen-hello --payload '{"from": "anna"}' | kingdom template create -

    JSON: {template: as `kingdom template show` prints it, missing: [name of a value]}.
    """
    package = named_package(call, name, directory)
    repo = repo or package.general.default_repo or ""
    if needs_repo(package.template) and not repo:
        raise Misconfigured(f"{name} works in the repository of its event: name one, such as --repo acme/shop")
    git = await git_of(call, repo) if needs_repo(package.template) else ""
    context = replace(await preview_context(call, package, inputs.payload(payload), repo, event_type), git=git)
    template = render_template(package.template, context, lambda _: git)
    queries = [task.query for work in package.template.works for task in work.tasks]
    missing = list(dict.fromkeys(path for query in queries for path in missing_values(query, context)))
    if call.output.json:
        call.output.document(Preview(template=template, missing=missing))
        return
    typer.echo(write_template(template), nl=False)
    if missing:
        call.output.note(f"These values are empty for this event: {', '.join(missing)}")


@command(app, "validate", result=one(ListedGenerals))
async def validate(
    call: CommandCall,
    path: Annotated[
        str, typer.Argument(metavar="[DIR]", help="The folder or name of a General, or a directory of Generals.")
    ] = "",
    *,
    directory: GeneralsDirectory = "",
) -> int:
    """Check a General, or all Generals in a directory; the exit code is 1 if a General is broken.

    Example: kingdom general validate gen-pr

    JSON: {directory, generals: [...], broken: [{name, directory, reason}]}, as `list` prints it.
    """
    place = _directory_to_check(call, path, directory)
    loaded = _with_checked_scripts(_load(place, accepts_strangers=accepts_strangers(call)))
    if call.output.json:
        call.output.document(to_listed_generals(place, loaded))
    for package in loaded.packages:
        call.output.say(f"{package.name} is valid: {package.general.description}")
    for broken in loaded.broken:
        call.output.say(f"{broken.name} is broken: {broken.reason}")
    return exit_code.FAILED if loaded.broken else 0


@command(app, "install", result=one(Package))
async def install(
    call: CommandCall,
    source: Annotated[
        str, typer.Argument(metavar="DIR", help="A folder, or the name of a General that comes with Kingdom.")
    ],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a General with the same name.")] = False,
    directory: GeneralsDirectory = "",
) -> None:
    """Check a General and install it; a replaced General keeps its memory.

    Example: kingdom general install gen-pr

    JSON: {general, template, directory}, as `show` prints it.
    """
    place = generals_directory(call, directory)
    package = install_package(_source(source), place, replace=replace)
    if call.output.json:
        call.output.document(package)
    call.output.say(
        f"Installed {package.name} in {package.directory}.",
        f"Review its events, default_repo and policy in {package.directory}/{GENERAL_FILE}.",
    )
    try:
        load_package(Path(package.directory), accepts_strangers=accepts_strangers(call))
    except Misconfigured as error:
        call.output.note(f"{package.name} does nothing yet: {error}")


@command(app, "create", result=one(Package))
async def create(
    call: CommandCall,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name: gen-docs, or just docs.")],
    *,
    directory: GeneralsDirectory = "",
) -> None:
    """Create a complete General to start from; the scripted agent can run it.

    Example: kingdom general create docs

    JSON: {general, template, directory}, as `show` prints it.
    """
    name = name if name.startswith("gen-") else f"gen-{name}"
    package = _create_package(name, generals_directory(call, directory))
    if call.output.json:
        call.output.document(package)
    option = f" --directory {directory}" if directory else ""
    call.output.say(
        f"Created {package.name} in {package.directory}. Next:",
        f"  1. Define when it acts and what it may do:  {package.directory}/{GENERAL_FILE}",
        f"  2. Define what its agent does:              {package.directory}/prompts/task.md",
        f"  3. Check it:                                kingdom general validate{option}",
        f"  4. See the prompts as an agent gets them:   kingdom general preview {package.name}{option}",
        "  5. Run it (with `kingdom role engine --host` in another terminal):",
        f"       kingdom general preview {package.name}{option} | kingdom template create -",
        f"       kingdom workflow create {package.template.id} --start --wait",
    )


@command(app, "schema", result=one(dict[str, Any]))
async def schema(call: CommandCall) -> None:
    """Print the JSON schema of general.yaml, for editors that complete and check YAML.

    Example: kingdom general schema > general.schema.json

    JSON: the schema on one line.
    """
    print_schema(call.output, general_schema())


def _directory_to_check(call: CommandCall, path: str, directory: str) -> Path:
    """Return the directory to check: the given one, that of the named General, or that of all Generals."""
    place = Path(path) if path and Path(path).is_dir() else generals_directory(call, directory) / path
    if not place.is_dir():
        cause = f"there is no General and no directory {path or place}"
        raise Misconfigured(f"{cause}: name one, or create a General with `kingdom general create`")
    return place


def _load(place: Path, *, accepts_strangers: bool) -> LoadedPackages:
    """Load the Generals in a directory, or only one General if the directory is its folder."""
    if (place / GENERAL_FILE).exists():
        return _load_one(place.absolute(), accepts_strangers=accepts_strangers)
    loaded = load_packages(place, accepts_strangers=accepts_strangers)
    if not (loaded.packages or loaded.broken):
        raise Misconfigured(
            f"there is nothing to check in {place}, which has no {GENERAL_FILE} and no folder gen-NAME:"
            " create a General with `kingdom general create`"
        )
    return loaded


def _load_one(folder: Path, *, accepts_strangers: bool) -> LoadedPackages:
    """Load the General of a folder. Another General of the same directory may make it broken."""
    loaded = load_packages(folder.parent, accepts_strangers=accepts_strangers)
    packages = tuple(each for each in loaded.packages if each.name == folder.name)
    broken = tuple(each for each in loaded.broken if each.name == folder.name)
    if packages or broken:
        return LoadedPackages(packages=packages, broken=broken)
    # The name of this folder is not that of a General, so it is not among those of its directory.
    try:
        return LoadedPackages(packages=(load_package(folder, accepts_strangers=accepts_strangers),))
    except Misconfigured as error:
        return LoadedPackages(broken=(BrokenPackage(name=folder.name, directory=str(folder), reason=str(error)),))


def _with_checked_scripts(loaded: LoadedPackages) -> LoadedPackages:
    """Return the packages; a package with an invalid script in its prompts is among the broken ones."""
    wrong = [
        BrokenPackage(name=package.name, directory=package.directory, reason=mistake)
        for package in loaded.packages
        if (mistake := _script_mistake(package.template))
    ]
    names = {each.name for each in wrong}
    fine = tuple(package for package in loaded.packages if package.name not in names)
    return LoadedPackages(packages=fine, broken=(*loaded.broken, *wrong))


def _script_mistake(template: WorkflowTemplate) -> str:
    for work in template.works:
        for task in work.tasks:
            # A line with a placeholder is not checked, because its text depends on the event.
            known = "\n".join("" if "{{" in line else line for line in task.query.split("\n"))
            try:
                parse_script(known)
            except AgentFailed as error:
                return f"a prompt of work {work.name}: {error}"
    return ""


def _source(given: str) -> Path:
    if Path(given).is_dir():
        return Path(given)
    if found := find_shipped_package(given):
        return found
    names = ", ".join(package.name for package in load_packages(SHIPPED).packages)
    raise NotFound(f"{given!r} is neither a folder nor a General that comes with Kingdom ({names})")


def _create_package(name: str, place: Path) -> Package:
    """Create a General as a copy of the simplest one that comes with Kingdom."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise Misconfigured(f"{name!r} is not a valid name for a General: use lower-case words with '-' between them")
    if (place / name).exists():
        allowed = ("another name", "changing it there")
        raise IllegalTransition(f"general {name}", "INSTALLED", f"it is in {place / name}", allowed)
    with TemporaryDirectory() as temporary:
        draft = Path(temporary) / name
        shutil.copytree(SHIPPED / _EXAMPLE, draft)
        file = draft / GENERAL_FILE
        topic = name.removeprefix("gen-").replace("-", "_")
        text = file.read_text(encoding="utf-8").replace(_EXAMPLE, name)
        text = text.replace("demo.hello", f"demo.{topic}").replace("hello-in-the-morning", f"{name}-in-the-morning")
        file.write_text(text, encoding="utf-8")
        return install_package(draft, place, replace=False)


def _row(package: Package) -> tuple[str, str, str, str, str]:
    general = package.general
    types = "\n".join(each.type for each in general.subscribes) or "-"
    schedules = "\n".join(each.name for each in general.schedules) or "-"
    return general.name, types, schedules, ", ".join(work_names(package)), general.description


def _petition_rule(rule: PetitionRule) -> str:
    approvals = ", approvals too" if "APPROVE" in rule.events else ""
    commands = f", with the commands {' '.join(rule.commands)} to bots" if rule.commands else ""
    condition = ", if a person approves" if rule.approval else ""
    return f"{rule.kind} on {', '.join(rule.targets)}, at most {rule.at_most}{approvals}{commands}{condition}"
