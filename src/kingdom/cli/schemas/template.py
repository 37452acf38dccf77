"""Descriptions of the fields of a template."""

from typing import Any

from kingdom.cli.schemas.described import Words, schema_of
from kingdom.workflow.template_file import TemplateFile

_WORDS: Words = {
    "TemplateFile": {
        "id": "Default: derived from the name.",
        "name": "Its name for people.",
        "description": "Its purpose.",
        "gitRefs": "The repositories of which every Work gets a checkout: ids, or objects.",
        "mcpServerRefs": "The MCP servers that every agent can call: ids, or objects.",
        "policy": "What a run may do without asking.",
        "works": "The agent sessions, one after the other.",
    },
    "GitRefEntry": {
        "gitId": "As in `kingdom git list`.",
        "baseBranch": "The branch that work starts from. Default: the default branch of the repository.",
    },
    "McpServerRefEntry": {
        "mcpServerId": "As in `kingdom mcp list`.",
        "env": "Environment variables that override its own.",
    },
    "PolicyEntry": {
        "retries": "How many failures of one Work are followed by another attempt.",
        "budgetUsd": "The budget of a run.",
        "overBudget": "What happens when the budget is spent: a person is asked to double it, or the run fails.",
    },
    "WorkEntry": {
        "name": "Its name for people.",
        "tasks": "Its steps in order: prompts, or objects. One session answers all of them.",
        "instructions": "Instructions for its agent before all steps.",
        "model": "The model of its agent. Default: the agent's own choice.",
        "gitRefs": "Additional repositories, or overrides of those of the workflow.",
        "mcpServerRefs": "Additional MCP servers, or overrides of those of the workflow.",
        "verify": "Commands that must succeed before the Work is complete.",
        "pauseAfter": "`true`: a person approves before the next Work starts.",
        "timeoutSeconds": "The time limit of a step or check.",
    },
    "TaskEntry": {
        "query": "The prompt.",
        "reportOutline": "The headings of the report that the agent writes. Default: no report.",
        "timeoutSeconds": "The time limit of this step.",
    },
    "SectionEntry": {
        "title": "The heading.",
        "description": "What belongs under it.",
    },
}


def template_schema() -> dict[str, Any]:
    """Return the schema of a template, and of workflow.yaml."""
    return schema_of(TemplateFile, _WORDS)
