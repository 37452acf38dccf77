"""Atlassian documents, the text format of Jira. Version 2 of the REST API shows them as plain text."""

from typing import Any


def to_document(text: str) -> dict[str, Any]:
    """Convert plain text to a document with one paragraph per line."""
    paragraphs = [
        {"type": "paragraph", "content": [{"type": "text", "text": line}]} if line else {"type": "paragraph"}
        for line in text.split("\n")
    ]
    return {"type": "doc", "version": 1, "content": paragraphs}


def is_document(value: Any) -> bool:
    """Return whether Jira accepts a value as a document."""
    return _is_node(value) and value["type"] == "doc" and value.get("version") == 1 and "content" in value


def to_text(node: dict[str, Any]) -> str:
    """Convert a document to plain text with one line per block."""
    if node["type"] == "text":
        return str(node["text"])
    if node["type"] == "hardBreak":
        return "\n"
    if "content" not in node:
        attributes = node.get("attrs", {})
        return str(attributes.get("text") or attributes.get("url") or "")
    parts = [to_text(child) for child in node["content"]]
    return ("" if node["type"] in ("paragraph", "heading", "codeBlock") else "\n").join(parts)


def _is_node(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    if value["type"] == "text":
        return isinstance(value.get("text"), str) and value["text"] != ""
    content = value.get("content", [])
    return isinstance(content, list) and all(_is_node(child) for child in content)
