"""`kingdom config …`: the file of settings."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kingdom.cli.command import Call, command
from kingdom.realm import EXAMPLE, FILE, read_realm, realm_schema, without_secrets
from kingdom.yaml_file import write_yaml

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The file of settings.")


@command(app, "check")
async def check(
    call: Call, file: Annotated[str, typer.Argument(metavar="[FILE]", help=f"The file; else {FILE}.")] = FILE
) -> None:
    """Check the file of settings and print everything that counts, defaults too; secrets are not shown.

    Example: kingdom config check

    JSON: the settings, in the form of the file.
    """
    realm, _ = read_realm(Path(file))
    if call.output.json:
        call.output.document(without_secrets(realm))
    else:
        typer.echo(write_yaml(without_secrets(realm)), nl=False)


@command(app, "example")
async def example(call: Call) -> None:
    """Print a file of settings to start from.

    Example: kingdom config example > kingdom.yaml

    JSON: {text}.
    """
    if call.output.json:
        call.output.document({"text": EXAMPLE})
    else:
        typer.echo(EXAMPLE, nl=False)


@command(app, "schema")
async def schema(call: Call) -> None:
    """Print the JSON schema of the file of settings, for editors that complete and check YAML.

    Example: kingdom config schema > kingdom.schema.json

    JSON: the schema on one line.
    """
    if call.output.json:
        call.output.document(realm_schema())
    else:
        typer.echo(msgspec.json.format(msgspec.json.encode(realm_schema()), indent=2))
