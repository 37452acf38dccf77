"""`kingdom general memory` and `promote`: show and promote what a General has learned."""

from typing import Annotated

import typer

from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import array, one
from kingdom.cli.general.lookup import GeneralName, GeneralsDirectory, named_package
from kingdom.court.memory import MemoryLine, list_memory, promote_line

app = typer.Typer(add_completion=False)


@command(app, "memory", result=array(MemoryLine))
async def memory(call: CommandCall, name: GeneralName, *, directory: GeneralsDirectory = "") -> None:
    """Show what a General has learned, and from which repository, run and day.

    Agents see only what was learned in their own repository, until it is promoted.

    Example: kingdom general memory gen-pr

    JSON: an array of {text, origin, everywhere, file}.
    """
    sentences = list_memory(named_package(call, name, directory).directory)
    if call.output.json:
        call.output.document(sentences)
    elif sentences:
        rows = [(each.text, "everywhere" if each.everywhere else each.file, each.origin or None) for each in sentences]
        call.output.table(("sentence", "applies to", "learned"), rows)
    else:
        call.output.say(f"{name} has learned nothing yet.")


@command(app, "promote", result=one(MemoryLine))
async def promote_(
    call: CommandCall,
    name: GeneralName,
    words: Annotated[str, typer.Argument(metavar="WORDS", help="A unique part of the sentence.")],
    *,
    directory: GeneralsDirectory = "",
) -> None:
    """Apply a sentence that was learned in one repository to all repositories.

    Every agent of the General then sees it. Read it first: an agent wrote it, perhaps after reading text of strangers.

    Example: kingdom general promote gen-pr "Tests need a database"

    JSON: {text, origin, everywhere, file}, as before the promotion.
    """
    chosen = promote_line(named_package(call, name, directory).directory, words)
    if call.output.json:
        call.output.document(chosen)
    call.output.say(f"For {name} this now applies everywhere: {chosen.text}")
