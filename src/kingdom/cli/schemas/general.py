"""What each field of `general.yaml` means, by the type that has it."""

from typing import Any

from kingdom.cli.schemas.described import Words, schema_of
from kingdom.court.package import General

_WORDS: Words = {
    "General": {
        "name": "As its folder is called: `gen-` and lower-case words.",
        "description": "What it does, in a sentence.",
        "order": "Those with a lower number are offered an event first.",
        "timeout_seconds": "So long a step of its agents may take, unless the workflow says otherwise.",
        "subscribes": "Which events it wants.",
        "schedules": "When it acts by itself.",
        "default_repo": "The repository for events that name none, as `acme/shop`.",
        "channel": "Where people are told and asked. Nothing said: the channel of the realm.",
        "policy": "What it may do.",
        "memory": "More files of the folder that prompts may show, beside those that its agents write.",
    },
    "Subscription": {
        "type": "The type of the event, as a glob.",
        "repos": "Only events of these repositories, as globs; needed where strangers are heard. None named: all.",
        "where": "Only events with these values, by the path of a field, such as `payload.actor`; texts are globs.",
        "also": "`true`: gets the event beside the first General that fits.",
        "priority": "Another priority than that of the event.",
        "supersedes": "What an event is about, such as `{repo}#{payload.number}`; a newer one replaces one that waits.",
        "debounce_seconds": "So long an event is held back for a newer one.",
    },
    "Schedule": {
        "name": "Unique among all Generals.",
        "cron": "Minute, hour, day, month, weekday.",
        "task_type": "The type of the event that it makes.",
        "repo": "The repository that the event names.",
        "payload": "The payload of the event.",
        "time_zone": "Nothing said: that of the court.",
        "catch_up": "Which of the times that nobody was there for still count.",
    },
    "GeneralPolicy": {
        "retries": "So many failures are met with another attempt.",
        "retry_after_seconds": "How long after a failure.",
        "budget_usd": "What is set aside before a run begins, and what it may cost. Nothing said: `king.reserved_usd`.",
        "over_budget": "What happens when it is spent: a person is asked for as much again, or the run fails.",
        "concurrency": "So many of its assignments run at once. Nothing said: as many as there are slots.",
        "petitions": "What its agents may ask for; nothing else is done for them.",
        "ask_deadline_hours": "After so long without an answer a question has its default answer.",
        "ask_default": "That answer. Nothing said: the assignment fails.",
        "ask_people": "Who may answer. Nobody named: everybody there.",
    },
    "PetitionRule": {
        "kind": "What may be asked for, such as `github.review`; see [Petitions](../petitions.md).",
        "targets": "Where. `*` is what the assignment is about; every other place has to be named.",
        "at_most": "How often in one assignment.",
        "body_bytes_max": "How large it may be, as JSON.",
        "expires_hours": "What could not be done for so long is not done any more.",
        "approval": "`true`: a person is asked first.",
        "events": "Verdicts that a `github.review` may have; `APPROVE` has to be named.",
        "commands": "Mentions and commands, such as `@dana` and `/retest`, that reach people and bots; globs.",
    },
}


def general_schema() -> dict[str, Any]:
    """Return the schema of general.yaml."""
    return schema_of(General, _WORDS)
