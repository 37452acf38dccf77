"""The first words of the command line as plain data, so that help and completion load nothing else."""

# The first words by group. `loading.py` imports the module of each word that is not an alias.
GROUPS: dict[str, dict[str, str]] = {
    "Start here": {
        "demo": "See Kingdom work in two minutes, in a temporary directory: a review, a question, kills, recovery.",
        "init": "Create a realm: its settings and a first General.",
        "doctor": "Check this machine and realm, and say how to fix what is wrong.",
        "up": "Run every role of the court on this machine until stopped.",
    },
    "Daily": {
        "status": "Show the state of the court and what needs a person.",
        "top": "Watch the court on a live screen and act on what needs a person.",
        "ps": "List the runs and assignments that have not ended.",
        "show": "Show the thing with an id: a run, assignment, event, petition or General.",
        "logs": "Show what the agents of a run were asked, said and did.",
        "why": "Show where an event is and why it waits there.",
        "explain": "Show the timeline of an event, assignment or run, from its cause to its result.",
        "inbox": "List the questions that wait for a person.",
        "answer": "Answer a question of an assignment.",
        "send": "Send an event to the court, as if it came from an outside system.",
        "resume": "Resume a run.",
        "cancel": "Cancel a run, or the run of an assignment.",
        "diff": "Print the changes of a run.",
    },
    "Runs": {
        "workflow": "Create, start, watch, pause and resume runs, and see their results.",
        "attach": "Watch a run in tmux: its agent and the files that it changes.",
        "template": "Manage the templates that runs are created from.",
        "git": "Manage the repositories that runs can use.",
        "mcp": "Manage the MCP servers that agents can call.",
    },
    "Court": {
        "general": "Manage the Generals: which events each one handles, and how.",
        "event": "List and show events from outside systems, send one yourself, and route an event again.",
        "assignment": "List and show what the King assigned to Generals.",
        "petition": "List and show what agents asked for and what was done in outside systems.",
        "followup": "List, show and stop the pull requests that Kingdom follows until they are merged.",
        "cost": "Show what the work costs by day, General, repository and model, and a forecast.",
        "simulate": "Show what other rules would have decided about past events.",
        "config": "Check the settings file, or print an example.",
        "github": "Print the manifest of a GitHub App for Kingdom.",
    },
    "Bus": {
        "bus": "Use the event bus: publish, run workers, inspect, repair.",
        "dead": "List the events that could not be handled.",
        "redrive": "Retry dead events.",
        "storage": "Move everything to another store.",
    },
    "Machines": {
        "web": "Run the web server with the HTTP API; invite people, and manage tokens and sessions.",
        "host": "List, drain and retire the machines that run agents.",
        "role": "Run one role in this process until stopped.",
        "agent-mcp": "Serve an agent its tools over MCP; agents start this themselves.",
        "completion": "Print the script that makes a shell complete commands and ids.",
    },
}
# An alias is another name for a command.
ALIASES: dict[str, tuple[str, ...]] = {
    "send": ("event", "send"),
    "resume": ("workflow", "resume"),
    "cancel": ("workflow", "cancel"),
    "diff": ("workflow", "diff"),
    "dead": ("bus", "dead", "list"),
    "redrive": ("bus", "redrive"),
}
# Earlier names that still work; help and completion do not show them.
FORMER_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("engine",): ("role", "engine"),
    ("host", "run"): ("role", "host"),
}
# The verb of a noun that is given without one.
DEFAULT_VERBS: dict[str, str] = {"web": "run"}
WORDS: dict[str, str] = {name: words for group in GROUPS.values() for name, words in group.items()}
NOUNS: tuple[str, ...] = tuple(name for name in WORDS if name not in ALIASES)


def expand_alias(words: list[str]) -> tuple[list[str], str]:
    """Return the words of the command that an alias or a former name stands for, and a note that names both."""
    aliases = {(alias,): full for alias, full in ALIASES.items()}
    for names, relation in ((aliases, "short for"), (FORMER_NAMES, "the former name of")):
        for name, full in names.items():
            if tuple(words[: len(name)]) == name:
                note = f"`kingdom {' '.join(name)}` is {relation} `kingdom {' '.join(full)}`."
                return [*full, *words[len(name) :]], note
    return words, ""
