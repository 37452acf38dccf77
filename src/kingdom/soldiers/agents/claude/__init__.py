"""Claude Code as an agent: its own program, spoken to through the vendor's SDK."""
