"""Every first word of the command line, as plain data: help and completion need nothing else, so they come at once."""

# `loading.py` has the module of each word that is not an alias.
GROUPS: dict[str, dict[str, str]] = {
    "Start here": {
        "demo": "See it work in two minutes, in a throwaway directory: a review, a question, kills, recovery.",
        "init": "Make a realm to start from: settings, a General, and what to do next.",
        "doctor": "Look for everything that can be wrong here, and tell how to put it right.",
        "up": "Run every role of the court on this machine, until stopped.",
    },
    "Daily": {
        "status": "Show how the court stands, and what needs a person.",
        "top": "See the court on one live screen, and act on what needs a person.",
        "ps": "Show the runs and assignments that have not ended.",
        "show": "Show whatever an id names: a run, an assignment, an event, a petition, a General.",
        "logs": "What the agents of a run were asked, said and did.",
        "why": "Explain where an event is and what holds it there.",
        "explain": "Tell what became of something, from the event outside to the result.",
        "inbox": "The questions that wait for a person.",
        "answer": "Answer a question of an assignment.",
        "send": "Tell the court of an event, as if it had happened outside.",
        "resume": "Let a run go on.",
        "cancel": "Give up a run, or the run of an assignment.",
        "diff": "Print what a run changed.",
    },
    "Runs": {
        "workflow": "Runs: create, start, watch, pause, resume, look at what they left.",
        "attach": "Watch a run in a terminal of its own: its agent, and the files it changes.",
        "template": "Templates: what runs are made from, as YAML files.",
        "git": "The repositories that runs may use.",
        "mcp": "The MCP servers that agents may call.",
    },
    "Court": {
        "general": "The Generals: who does what when, as YAML files.",
        "event": "What happened outside: list, show, send, route anew.",
        "assignment": "What the King handed to Generals: list, show.",
        "petition": "What agents asked for and what left the house: list, show.",
        "simulate": "Show what other rules would have decided about past events.",
        "config": "The file of settings: check it, or print one to start from.",
    },
    "Bus": {
        "bus": "The durable event bus: publish, work, look, repair.",
        "dead": "List the events that could not be handled.",
        "redrive": "Start a new round for dead events.",
        "storage": "The store behind it: move everything to another one.",
    },
    "Machines": {
        "host": "The machines that run agents.",
        "role": "Play one role of the court in this process, until stopped.",
        "agent-mcp": "Offer an agent its tools over MCP; agents start it themselves.",
        "completion": "Print what makes a shell complete commands and ids.",
    },
}
# An alias is another name for a command, never a second one.
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
WORDS: dict[str, str] = {name: words for group in GROUPS.values() for name, words in group.items()}
NOUNS: tuple[str, ...] = tuple(name for name in WORDS if name not in ALIASES)


def expand_alias(words: list[str]) -> tuple[list[str], str]:
    """Return the words of the command that an alias or a former name stands for, and a note that says so."""
    for short, full in (*(((alias,), full) for alias, full in ALIASES.items()), *FORMER_NAMES.items()):
        if tuple(words[: len(short)]) == short:
            note = f"`kingdom {' '.join(short)}` is short for `kingdom {' '.join(full)}`."
            return [*full, *words[len(short) :]], note
    return words, ""
