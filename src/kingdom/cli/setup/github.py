"""`kingdom github …`: print the manifest of a GitHub App for Kingdom."""

from typing import Annotated

import msgspec
import typer

from kingdom.cli.framework.command import storeless_command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.output import CommandOutput
from kingdom.court.petitions.github.access import APP_EVENTS, APP_PERMISSIONS
from kingdom.views.setup import AppManifest, AppWebhook

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Print the manifest of a GitHub App for Kingdom.")


@app.callback()
def _group() -> None:
    """Print the manifest of a GitHub App for Kingdom."""
    # Without this function, Typer leaves out the verb of a noun that has only one.


@storeless_command(app, "manifest", result=one(AppManifest))
async def manifest(
    output: CommandOutput,
    webhook: Annotated[str, typer.Argument(metavar="URL", help="Where GitHub reaches the Sentinel.")],
    name: Annotated[str, typer.Option(help="The name of the App, which is unique on GitHub.")] = "kingdom",
    homepage: Annotated[str, typer.Option(help="The page that GitHub links to; by default the webhook's.")] = "",
) -> None:
    """Print the manifest of a GitHub App with the least permissions and the events that Kingdom needs.

    Example: kingdom github manifest https://kingdom.example.com/webhooks/github --name acme-kingdom

    JSON: the manifest on one line.
    """
    document = AppManifest(
        name=name,
        url=homepage or webhook,
        public=False,
        hook_attributes=AppWebhook(url=webhook, active=True),
        default_permissions=dict(APP_PERMISSIONS),
        default_events=list(APP_EVENTS),
    )
    if output.json:
        output.document(document)
    else:
        typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
