"""The description of a program that takes one prompt and ends."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template

from kingdom.errors import Misconfigured
from kingdom.soldiers.agents.model_url import model_url
from kingdom.soldiers.agents.port import Launch
from kingdom.soldiers.files.agent_files import AgentFile
from kingdom.soldiers.sandbox.programs import folders_of_program
from kingdom.soldiers.sandbox.sandbox import Sandbox

# The placeholders that a command may contain, each after a dollar sign.
PLACEHOLDERS = frozenset({"model", "prompt", "prompt_file", "url"})
_PROMPT, _PROMPT_FILE = "$prompt", "$prompt_file"
_FILE = ".kingdom-prompt.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTemplate:
    """How the program is called.

    `argv` and `environment` are templates: $model is the name of the model, $url its address. `argv` contains $prompt
    for the text of the prompt, or $prompt_file for a file with the prompt; otherwise the prompt is the standard input.
    `cost` is a regular expression whose first group finds US dollars in the output. `readable` are folders that the
    program needs. `model` and `url` are defaults.
    """

    argv: tuple[str, ...]
    model: str = ""
    url: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cost: str = ""
    readable: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInvocation:
    """A command with its placeholders filled in for one prompt."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    sandbox: Sandbox | None
    standard_input: bytes


AIDER = CommandTemplate(
    argv=(
        *("aider", "--model", "openai/$model", "--yes-always", "--no-check-update", "--no-analytics", "--no-pretty"),
        *("--no-gitignore", "--no-auto-commits", "--no-show-model-warnings", "--message-file", "$prompt_file"),
    ),
    model="gpt-5",
    url="https://api.openai.com",
    environment={
        "OPENAI_API_BASE": "$url/v1",
        "OPENAI_API_KEY": "none",
        # Without this variable aider downloads a list of prices.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    cost=r"Cost: \$([0-9.]+) message",
)


def prepare_command(command: CommandTemplate, launch: Launch, prompt: str) -> CommandInvocation:
    """Write the prompt file if needed and return the command; raises Misconfigured if the program is missing."""
    words = " ".join(command.argv)
    file = AgentFile(launch.work_space, _FILE)
    texts = {
        "model": launch.model or command.model,
        "url": model_url(launch, command.url),
        "prompt": prompt,
        "prompt_file": str(file.path),
    }
    environment = {name: Template(value).substitute(texts) for name, value in command.environment.items()}
    environment |= launch.environment
    program = find_program(command, environment.get("PATH", ""))
    if _PROMPT_FILE in words:
        file.write(prompt)
    arguments = (Template(argument).substitute(texts) for argument in command.argv[1:])
    readable = (*command.readable, *folders_of_program(program))
    return CommandInvocation(
        argv=(str(program), *arguments),
        environment=environment,
        sandbox=launch.sandbox and replace(launch.sandbox, readable=(*launch.sandbox.readable, *readable)),
        standard_input=b"" if _PROMPT in words else prompt.encode(),
    )


def find_program(command: CommandTemplate, path: str) -> Path:
    """Return the program of a command; raises Misconfigured if it is not on the PATH."""
    program = shutil.which(command.argv[0], path=path)
    if program is None:
        raise Misconfigured(
            f"there is no program {command.argv[0]!r} on the PATH of agents: install it, and name its folder in"
            " soldiers.path of kingdom.yaml"
        )
    return Path(program)


def cost_of(command: CommandTemplate, output: str) -> float:
    """Return the cost that the program reports in its output."""
    return round(sum(map(float, re.findall(command.cost, output))), 9) if command.cost else 0.0
