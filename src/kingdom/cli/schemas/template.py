"""What each field of a template means, by the type that has it."""

from typing import Any

from kingdom.cli.schemas.described import Words, schema_of
from kingdom.workflow.template_file import TemplateFile

_WORDS: Words = {
    "TemplateFile": {
        "id": "Nothing said: it is made from the name.",
        "name": "What people call it.",
        "description": "What it is for.",
        "gitRefs": "The repositories that every Work has a checkout of: ids, or more than an id.",
        "mcpServerRefs": "The MCP servers that every agent may call: ids, or more than an id.",
        "policy": "What may be done without asking.",
        "works": "The agent sessions, one after the other.",
    },
    "GitRefEntry": {
        "gitId": "As in `kingdom git list`.",
        "baseBranch": "The branch that work starts from. Nothing said: the default branch of the repository.",
    },
    "McpServerRefEntry": {
        "mcpServerId": "As in `kingdom mcp list`.",
        "env": "Environment variables that differ from its own.",
    },
    "PolicyEntry": {
        "retries": "So many failures of one Work are met with another attempt.",
        "budgetUsd": "What a run may cost.",
        "overBudget": "What happens when it is spent: a person is asked for as much again, or the run fails.",
    },
    "WorkEntry": {
        "name": "What people call it.",
        "tasks": "Its steps in order: prompts, or more than a prompt. All are answered in one session.",
        "instructions": "What its agent is told before everything else.",
        "model": "The model of its agent. Nothing said: the agent's own choice.",
        "gitRefs": "More repositories, or others than those of the workflow.",
        "mcpServerRefs": "More MCP servers, or others than those of the workflow.",
        "verify": "Commands that must succeed before the Work counts.",
        "pauseAfter": "`true`: a person approves before the next Work begins.",
        "timeoutSeconds": "So long a step, or a check, may take.",
    },
    "TaskEntry": {
        "query": "The prompt.",
        "reportOutline": "The headings of the report that the agent shall write. None: no report.",
        "timeoutSeconds": "So long this step may take.",
    },
    "SectionEntry": {
        "title": "The heading.",
        "description": "What belongs under it.",
    },
}


def template_schema() -> dict[str, Any]:
    """Return the schema of a template, and of workflow.yaml."""
    return schema_of(TemplateFile, _WORDS)
