"""An agent that follows a script in its prompts: deterministic, free, and a real process."""
