"""Formats the new entries of a run's sessions for a person."""

from collections.abc import Iterator

from rich.text import Text

from kingdom.bootstrap import operations_of, run_texts_of
from kingdom.bus.port import Bus
from kingdom.cli.framework.workflow_ids import short
from kingdom.cli.logs.transcript_view import TranscriptView
from kingdom.soldiers.transcripts.run_sessions import LogSubject, RunSession
from kingdom.soldiers.transcripts.session_follower import SessionEntries, SessionFollower
from kingdom.text import printable
from kingdom.workflow.model.run.workflow import Workflow


def follow_sessions(bus: Bus, subject: LogSubject) -> SessionFollower:
    """Return a follower of the sessions of a run on any host."""
    return SessionFollower(bus, operations_of(bus), run_texts_of(bus), subject)


class SessionView:
    """Formats new entries for a person, with a heading for each session."""

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow
        self._view = TranscriptView()
        self._shown = ""

    def lines(self, news: SessionEntries) -> Iterator[Text]:
        """Yield the lines of new entries."""
        lines = list(self._view.lines(news.entries))
        if lines and self._shown != news.session.soldier:
            self._shown = news.session.soldier
            yield self._head(news.session)
        yield from lines

    def _head(self, session: RunSession) -> Text:
        workflow = self._workflow
        work = workflow.find_work(session.work_id)
        name = work.definition.name if work else "removed"
        words = f"── {short(workflow, session.work_id)} {name} · {session.soldier} on {session.host} ──"
        return Text(printable(words), style="bold")
