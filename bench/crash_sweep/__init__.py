"""A run of agents, killed at every durable step of engine and host, must end as if nothing had happened."""
