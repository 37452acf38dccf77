"""An agent that follows the script in its prompt: deterministic, without cost, and a real process."""
