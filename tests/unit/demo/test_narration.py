import pytest

from kingdom.bus.log import LogEntry
from kingdom.demo.narration import NarrationLine, Tone, describe_log_entry, describe_transcript_entry
from kingdom.workflow.model.messages.catalog import EVENT_TYPES


def entry(kind: str, actor: str = "king", /, **data: object) -> LogEntry:
    return LogEntry(type=kind, actor=actor, data=data)


@pytest.mark.parametrize(
    ("logged", "line"),
    [
        (
            entry("event.detected", "sentinel", event_type="github.pr.comment", event_id="evt-github-1"),
            NarrationLine("sentinel", "notices github.pr.comment"),
        ),
        (
            entry("event.dispatched", target_general="gen-a", task_id="task-1", event_id="evt-github-1"),
            NarrationLine("king", "gives it to gen-a as task-1"),
        ),
        (
            entry("task.needs_human", "gen-a", task_id="task-1", question="Why?"),
            NarrationLine("gen-a", "asks a person: Why?", Tone.PERSON),
        ),
        (
            entry("AgentError", workId="wf-task-1-w2", error="killed by SIGKILL"),
            NarrationLine("soldiers", "lose the agent of w2 of task-1: killed by SIGKILL", Tone.BAD),
        ),
        (
            entry("CheckpointCreated", checkpointId="wf-task-1-w2-c1", commits={"tree": "0123456789abcdef"}),
            NarrationLine("soldiers", "take checkpoint w2-c1 of task-1 at commit 0123456789", Tone.GOOD),
        ),
        (
            entry("RolledBack", checkpointId=None, rescueRefs=[]),
            NarrationLine("soldiers", "roll back to the base branch", Tone.GOOD),
        ),
        (
            entry("task.completed", "gen-a", task_id="t", status="failed", duration_seconds=2),
            NarrationLine("gen-a", "ends t: failed after 2 s", Tone.BAD),
        ),
    ],
)
def test_an_entry_of_the_log_becomes_a_sentence(logged: LogEntry, line: NarrationLine) -> None:
    assert describe_log_entry(logged) == line


def test_entries_that_people_do_not_need_are_left_out() -> None:
    assert describe_log_entry(entry("QuerySent", workId="w", taskId="t", attempt=1)) is None
    # The entry about the answer itself is shown instead.
    assert (
        describe_log_entry(entry("event.detected", "envoy", event_type="cli.human_response", event_id="evt-cli-1"))
        is None
    )


def test_a_message_is_shown_with_its_text() -> None:
    assert describe_log_entry(entry("message.sent", "envoy", msg_id="m", content="Done.")) == NarrationLine(
        "envoy", "sends a message: Done."
    )
    assert describe_log_entry(entry("message.sent", "envoy", msg_id="m")) == NarrationLine("envoy", "sends a message")


def test_the_domain_events_of_the_narration_exist() -> None:
    names = {event.name for event in EVENT_TYPES.values()}
    assert {"AgentStarted", "AgentError", "WorkflowResumed", "CheckpointCreated", "RolledBack"} <= names


def test_an_agents_messages_are_shown_unchanged() -> None:
    assert list(describe_transcript_entry({"step": 1, "does": {"stream": "I read.", "every": 0.1}})) == [
        NarrationLine("agent", "“I read.”", Tone.WORDS)
    ]
    assert list(describe_transcript_entry({"prompt": "p", "answer": "Done."})) == [
        NarrationLine("agent", "“Done.”", Tone.WORDS)
    ]
    assert list(describe_transcript_entry({"prompt": "p", "text": "Do it."})) == []
    assert list(describe_transcript_entry({"step": 2, "does": {"cost": 0.1}})) == []


def test_only_the_changed_lines_of_a_diff_are_shown() -> None:
    diff = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n\n same\n"
    lines = list(describe_transcript_entry({"does": {"run": "git diff"}, "output": diff}))
    assert [line.what for line in lines] == ["$ git diff", "  -old", "  +new"]
    assert [line.what for line in describe_transcript_entry({"does": {"run": "ls"}, "output": "a\nb\n"})] == [
        "$ ls",
        "  a",
        "  b",
    ]
