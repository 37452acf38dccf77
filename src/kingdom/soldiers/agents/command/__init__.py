"""Agents that run one program per prompt, such as aider, keep no session, and report their result in a file."""
