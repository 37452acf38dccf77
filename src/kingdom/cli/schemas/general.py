"""Descriptions of the fields of `general.yaml`."""

from typing import Any

from kingdom.cli.schemas.described import Words, schema_of
from kingdom.court.package import General

_WORDS: Words = {
    "General": {
        "name": "The name of its folder: `gen-` and lower-case words.",
        "description": "What it does, in a sentence.",
        "order": "Generals with a lower number are offered an event first.",
        "timeout_seconds": "The time limit of a step of its agents, unless the workflow sets another.",
        "subscribes": "The events that it handles.",
        "schedules": "The times when it acts by itself.",
        "default_repo": "The repository for events without one, such as `acme/shop`.",
        "channel": "The channel for messages and questions. Default: the channel of the realm.",
        "policy": "What it may do.",
        "follow": "How it follows its pull requests until they are merged. Default: it does not.",
        "memory": "Files of the folder that prompts include, besides the memory that its agents write.",
    },
    "Subscription": {
        "type": "The type of the event, as a glob.",
        "repos": "Only events of these repositories, as globs; required if every repository is accepted. Default: all.",
        "where": "Only events with these values, by the path of a field, such as `payload.actor`; texts are globs.",
        "also": "`true`: the General gets the event even if another General gets it too.",
        "priority": "A priority that replaces that of the event.",
        "supersedes": (
            "The subject of an event, such as `{repo}#{payload.number}`; a new event replaces a waiting event with the"
            " same subject."
        ),
        "debounce_seconds": "How long an event waits for a newer one.",
    },
    "Schedule": {
        "name": "Unique among all Generals.",
        "cron": "Minute, hour, day, month, weekday.",
        "task_type": "The type of the event that it creates.",
        "repo": "The repository of the event.",
        "payload": "The payload of the event.",
        "time_zone": "Default: the time zone of the court.",
        "catch_up": "Which missed times still create an event.",
    },
    "GeneralPolicy": {
        "retries": "How many failures are followed by another attempt.",
        "retry_after_seconds": "The time between a failure and the next attempt.",
        "budget_usd": "The budget of a run, which is reserved before it starts. Default: `king.reserved_usd`.",
        "over_budget": "What happens when the budget is spent: a person is asked to double it, or the run fails.",
        "concurrency": "How many of its assignments run at once. Default: as many as there are slots.",
        "petitions": "The petitions that its agents may make; all others are rejected.",
        "protected_paths": (
            "Globs of paths. A pull request or a push that changes one of them needs the approval of a person. A name"
            " without a slash matches in every folder, and a folder includes its content. Default: the files of CI,"
            " `CODEOWNERS`, `.gitmodules` and `.gitattributes`; see [Petitions](../petitions.md#protected-paths)."
        ),
        "ask_deadline_hours": "The time after which a question gets its default answer.",
        "ask_default": "The default answer. Default: the assignment fails.",
        "ask_people": "The people who may answer. Default: everyone in the channel.",
        "result_people": (
            "Later runs may read the results of events by these people: globs of GitHub logins and Slack members; `*`"
            " for everyone. Events of schedules and of the command line need no name here. A run that a GitHub event of"
            " anyone else caused needs an approval for pull requests and pushes."
        ),
    },
    "FollowPolicy": {
        "people": (
            "Whose reviews begin a round: GitHub logins, and teams such as `acme/backend`. Default: everyone with write"
            " permission, and no bot."
        ),
        "budget_usd": "The limit for all rounds of a pull request together.",
        "review": "Rounds because of a review that requests changes or comments on lines.",
        "checks": "Rounds because of failed checks of the last commit that Kingdom pushed.",
        "conflicts": "Rounds because the base branch conflicts with the pull request.",
        "days": "How long a pull request is followed.",
        "debounce_seconds": "How long a round waits for more news, so that several reviews are one round.",
        "instructions": "Text that the prompt of each round contains, such as how to test a change.",
    },
    "RoundLimit": {"rounds": "How many rounds may begin; `0` for none."},
    "PetitionRule": {
        "kind": "The kind of petition, such as `github.review`; see [Petitions](../petitions.md).",
        "targets": "The allowed targets. `*` is the subject of the assignment; name every other target.",
        "at_most": "The limit per assignment.",
        "body_bytes_max": "The maximum size as JSON.",
        "expires_hours": "The time after which a petition that could not be carried out expires.",
        "approval": "`true`: a person is asked first.",
        "events": "The verdicts that a `github.review` may have; `APPROVE` must be listed.",
        "labels": "Which labels a github.label may set and remove, as globs. It needs at least one.",
        "commands": "Mentions and commands that are allowed, such as `@dana` and `/retest`; globs.",
    },
}


def general_schema() -> dict[str, Any]:
    """Return the schema of general.yaml."""
    return schema_of(General, _WORDS)
