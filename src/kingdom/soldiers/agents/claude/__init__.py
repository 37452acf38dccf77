"""Claude Code as an agent: its own program, controlled through the SDK of the vendor."""
