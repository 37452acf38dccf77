"""Agents such as aider: they run one program per prompt, keep no session, and report their result in a file."""
