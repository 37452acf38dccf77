"""Messages of a run: domain events, answers of hosts and commands to hosts."""
