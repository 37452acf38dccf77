"""The reference page of environment variables."""

from collections.abc import Mapping

from kingdom.cli.reference.markdown import beginning, code, table

_WORDS = """\
Kingdom reads few variables, and none of them while a module is imported. Everything else is set in
[kingdom.yaml](configuration.md), which can name a variable for any secret as `env:NAME`.
"""
# The meaning of each variable, by section. A test compares these names with the variables that the code reads.
VARIABLES: Mapping[str, Mapping[str, str]] = {
    "The store": {
        "KINGDOM_DATABASE_URL": (
            "`file:DIRECTORY`, `embedded:DIRECTORY` or `postgresql://…`. The option `--database-url` overrides it."
            " Without either, the store is `database_url` in kingdom.yaml, then `DATABASE_URL`, then `file:realm`."
        ),
        "DATABASE_URL": (
            "The store if nothing else names one. Hosting platforms often set it for another application."
        ),
        "KINGDOM_SCHEMA": "The schema of PostgreSQL; by default `kingdom`.",
        "KINGDOM_THROUGH_PGBOUNCER": "`1` if the store is reached through a PgBouncer in transaction mode.",
        "KINGDOM_LISTEN_URL": "The server behind the PgBouncer, for wake-ups and migrations.",
    },
    "Kafka": {
        "KINGDOM_KAFKA_SERVERS": "The brokers of streams with the transport kafka: `HOST:PORT,HOST:PORT`.",
        "KINGDOM_KAFKA_PREFIX": (
            "The first part of the names of all topics and groups of this store; by default the schema and a dot, as in"
            " `kingdom.orders`."
        ),
        "KINGDOM_KAFKA_PARTITIONS": "How many partitions a new topic gets; by default 12. Never change it later.",
        "KINGDOM_KAFKA_OPTIONS": (
            "Options of the client librdkafka: `NAME=VALUE;NAME=VALUE`, such as `security.protocol=ssl`."
        ),
    },
    "The user and the application": {
        "KINGDOM_APP": "`MODULE:OBJECT` that declares the streams and handlers of your application.",
        "KINGDOM_METRICS_PREFIX": (
            "The first part of the names of the [metrics](metrics.md) of workers, the courier and the store; by default"
            " `kingdom`, as in `kingdom_outbox_pending`."
        ),
        "KINGDOM_WEB_TOKEN": "The token of `kingdom bus tail --url`, unless `--token-file` names a file.",
        "KINGDOM_ACTOR": "Your name in the log; by default `USER@MACHINE`.",
        "GITHUB_TOKEN": "The GitHub token that the kingdom.yaml of `kingdom init` refers to.",
        "TZ": "The time zone that `kingdom init` writes.",
    },
    "Colors": {
        "NO_COLOR": "Any value turns colors off.",
        "TERM": "`dumb` turns colors off.",
    },
    "The model of an agent": {
        "ANTHROPIC_API_KEY": "The key of `claude`, unless `soldiers.model.key` is set. Agents never see it.",
        "OPENAI_API_KEY": "The same for `codex`, `opencode` and `aider`.",
        "GEMINI_API_KEY": "The same for `gemini`.",
    },
    "Set for an agent and its checkout": {
        "KINGDOM_VOICE_URL": "The address of an agent's tools; `kingdom agent-mcp` reads it.",
        "KINGDOM_MODEL_URL": "The address of the model for an agent without a sandbox.",
        "KINGDOM_PORT_BASE": "The first of ten ports reserved for a run; see [Checkout setup](../checkout-setup.md).",
    },
}


def page() -> str:
    """Return the page of the documentation."""
    parts = [beginning("Environment variables", "environment", _WORDS)]
    for title, variables in VARIABLES.items():
        rows = ((code(name), words) for name, words in variables.items())
        parts += [f"## {title}\n", *table(("Variable", "Meaning"), rows)]
    return "\n".join(parts)
