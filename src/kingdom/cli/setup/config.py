"""`kingdom config …`: check and describe the settings file."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kingdom.bootstrap import generals_directory_of
from kingdom.cli.framework.command import settings_of, storeless_command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.output import CommandOutput
from kingdom.cli.schemas.described import print_schema
from kingdom.cli.schemas.settings import settings_schema
from kingdom.realm import EXAMPLE, Realm, mask_secrets, read_realm
from kingdom.settings import FILE
from kingdom.views.setup import ExampleSettings
from kingdom.yaml_file import write_yaml

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Check the settings file, or print an example.")


@storeless_command(app, "check", result=one(Realm))
async def check(
    output: CommandOutput,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help=f"The file; by default {FILE}.")] = FILE,
) -> None:
    """Check the settings file and print the effective settings, including defaults, without secrets.

    Example: kingdom config check

    JSON: the settings, structured as in the file.
    """
    realm, settings = read_realm(Path(file)), settings_of(config=file)
    generals = str(generals_directory_of(settings, realm))
    effective = mask_secrets(msgspec.structs.replace(realm, database_url=settings.database_url, generals=generals))
    if output.json:
        output.document(effective)
    else:
        typer.echo(write_yaml(effective), nl=False)


@storeless_command(app, "example", result=one(ExampleSettings))
async def example(output: CommandOutput) -> None:
    """Print an example of a settings file.

    Example: kingdom config example > kingdom.yaml

    JSON: {text}.
    """
    if output.json:
        output.document(ExampleSettings(text=EXAMPLE))
    else:
        typer.echo(EXAMPLE, nl=False)


@storeless_command(app, "schema", result=one(dict[str, Any]))
async def schema(output: CommandOutput) -> None:
    """Print the JSON schema of the settings file, for editors that complete and check YAML.

    Example: kingdom config schema > kingdom.schema.json

    JSON: the schema on one line.
    """
    print_schema(output, settings_schema())
