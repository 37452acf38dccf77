"""The page of environment variables."""

from collections.abc import Mapping

from kingdom.cli.reference.markdown import beginning, code, table

_WORDS = """\
Few things are taken from the environment, and none of them while a module is imported. Whatever else can be set stands
in [kingdom.yaml](configuration.md). That file names variables of its own choice by `env:NAME`, for every secret.
"""
# By section, what each variable is for; a test compares the names with those in the code.
VARIABLES: Mapping[str, Mapping[str, str]] = {
    "Where the store is": {
        "KINGDOM_DATABASE_URL": (
            "`file:DIRECTORY`, `embedded:DIRECTORY` or `postgresql://…`. An option `--database-url` comes before it;"
            " the `database_url` of kingdom.yaml, then `DATABASE_URL`, then `file:realm` come after it."
        ),
        "DATABASE_URL": (
            "The store where nothing else names one: what many hosts set by themselves, often for another application."
        ),
        "KINGDOM_SCHEMA": "The schema of PostgreSQL to use; `kingdom` where nothing is said.",
        "KINGDOM_THROUGH_PGBOUNCER": "`1` where the address is that of a PgBouncer in transaction mode.",
        "KINGDOM_LISTEN_URL": "The server behind the PgBouncer, for wake-ups and migrations.",
    },
    "Who asks, and for what": {
        "KINGDOM_APP": "`MODULE:OBJECT` that declares the streams and handlers of an application of yours.",
        "KINGDOM_ACTOR": "Under which name the log keeps what you do; `USER@MACHINE` where nothing is said.",
        "GITHUB_TOKEN": "What `kingdom init` writes into kingdom.yaml as the token of GitHub.",
        "TZ": "The time zone that `kingdom init` proposes.",
    },
    "How it looks": {
        "NO_COLOR": "Anything but nothing: no colors.",
        "TERM": "`dumb`: no colors.",
    },
    "The model of an agent": {
        "ANTHROPIC_API_KEY": "The key of `claude`, where `soldiers.model.key` names no other. Agents never see it.",
        "OPENAI_API_KEY": "The same for `codex`, `opencode` and `aider`.",
        "GEMINI_API_KEY": "The same for `gemini`.",
    },
    "What an agent and its checkout are given": {
        "KINGDOM_VOICE_URL": "Where an agent reaches its tools; `kingdom agent-mcp` reads it.",
        "KINGDOM_MODEL_URL": "Where an agent without a sandbox finds its model.",
        "KINGDOM_PORT_BASE": "The first of ten ports that belong to a run; see [Fresh checkouts](../outfit.md).",
    },
}


def page() -> str:
    """Return the page of the documentation."""
    parts = [beginning("Environment variables", "environment", _WORDS)]
    for title, variables in VARIABLES.items():
        rows = ((code(name), words) for name, words in variables.items())
        parts += [f"## {title}\n", *table(("Variable", "Meaning"), rows)]
    return "\n".join(parts)
