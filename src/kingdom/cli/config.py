"""`kingdom config …`: the file of settings."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kingdom.bootstrap import generals_directory_of
from kingdom.cli.command import settings_of, storeless_command
from kingdom.cli.output import Output
from kingdom.cli.schemas.described import print_schema
from kingdom.cli.schemas.settings import settings_schema
from kingdom.cli.shape import one
from kingdom.realm import EXAMPLE, Realm, mask_secrets, read_realm
from kingdom.settings import FILE
from kingdom.yaml_file import write_yaml

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The file of settings.")


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A file of settings as text."""

    text: str


@storeless_command(app, "check", answer=one(Realm))
async def check(
    output: Output, file: Annotated[str, typer.Argument(metavar="[FILE]", help=f"The file; else {FILE}.")] = FILE
) -> None:
    """Check the file of settings and print everything that counts, defaults too; secrets are not shown.

    Example: kingdom config check

    JSON: the settings, in the form of the file.
    """
    realm, settings = read_realm(Path(file)), settings_of(config=file)
    generals = str(generals_directory_of(settings, realm))
    counting = mask_secrets(msgspec.structs.replace(realm, database_url=settings.database_url, generals=generals))
    if output.json:
        output.document(counting)
    else:
        typer.echo(write_yaml(counting), nl=False)


@storeless_command(app, "example", answer=one(Example))
async def example(output: Output) -> None:
    """Print a file of settings to start from.

    Example: kingdom config example > kingdom.yaml

    JSON: {text}.
    """
    if output.json:
        output.document(Example(text=EXAMPLE))
    else:
        typer.echo(EXAMPLE, nl=False)


@storeless_command(app, "schema", answer=one(dict[str, Any]))
async def schema(output: Output) -> None:
    """Print the JSON schema of the file of settings, for editors that complete and check YAML.

    Example: kingdom config schema > kingdom.schema.json

    JSON: the schema on one line.
    """
    print_schema(output, settings_schema())
