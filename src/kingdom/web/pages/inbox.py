"""The inbox: every question and approval in full, with its answers."""

from dataclasses import dataclass

from aiohttp import web

from kingdom.actions.listings import records_query
from kingdom.actions.questions import InboxItem, read_inbox
from kingdom.court.petitions.bodies import WITH_COMMIT
from kingdom.court.questions import QUESTIONS, QuestionStatus
from kingdom.text import printable
from kingdom.web.pages.frame import open_page
from kingdom.web.route import ApiCall, PageQuery

# A longer text is folded. Its approval is possible only after all of it was opened.
_LINES_SHOWN = 24
_CHARACTERS_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class FoldedText:
    """The first line of a text, the lines shown below it, and the folded rest."""

    heading: str
    shown: str
    folded: str

    @property
    def folded_lines(self) -> int:
        """Return the number of folded lines."""
        return self.folded.count("\n") + 1


def fold(text: str) -> FoldedText:
    """Fold a text. The three parts together are the whole text."""
    heading, _, rest = printable(text.strip()).partition("\n")
    lines = rest.split("\n")
    shown, size = 0, 0
    for line in lines[:_LINES_SHOWN]:
        size += len(line)
        if size > _CHARACTERS_SHOWN and shown:
            break
        shown += 1
    return FoldedText(heading, "\n".join(lines[:shown]), "\n".join(lines[shown:]))


@dataclass(frozen=True, slots=True)
class InboxCard:
    """A question as the page shows it. `refusal` says why this visitor cannot answer it, or is ""."""

    item: InboxItem
    text: FoldedText
    refusal: str

    @property
    def has_changes(self) -> bool:
        """Return whether the approval publishes changes of code, which a person must see too."""
        return self.item.kind in WITH_COMMIT


async def show_inbox(call: ApiCall) -> web.Response:
    """Show every question and approval that waits for a person."""
    query: PageQuery = call.query
    first = records_query(QUESTIONS, state=QuestionStatus.OPEN, after=query.after, limit=query.limit)
    async with open_page(call, "/inbox", [first]) as page:
        items, following = await read_inbox(page.transaction, after=query.after, limit=query.limit)
        cards = [InboxCard(item, fold(item.question.question), _refusal(call, item)) for item in items]
        return page.render("inbox.html", cards=cards, following=following, query=query)


def _refusal(call: ApiCall, item: InboxItem) -> str:
    people, visitor = item.ask.people, call.visitor
    if people and visitor.name not in people:
        return f"Only {', '.join(people)} can answer this."
    if visitor.generals and item.ask.general not in visitor.generals:
        return f"You can answer only for {', '.join(visitor.generals)}."
    return ""
