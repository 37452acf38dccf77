"""Texts as Jira keeps them: Atlassian documents, which version 2 of its interface shows as plain text."""

from typing import Any


def to_document(text: str) -> dict[str, Any]:
    """Return a plain text as a document, one paragraph for each line."""
    paragraphs = [
        {"type": "paragraph", "content": [{"type": "text", "text": line}]} if line else {"type": "paragraph"}
        for line in text.split("\n")
    ]
    return {"type": "doc", "version": 1, "content": paragraphs}


def is_document(value: Any) -> bool:
    """Tell whether Jira would take a value for a document."""
    return _is_node(value) and value["type"] == "doc" and value.get("version") == 1 and "content" in value


def to_text(node: dict[str, Any]) -> str:
    """Return the text of a document, one line for each of its blocks."""
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
