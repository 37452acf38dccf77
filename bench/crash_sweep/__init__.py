"""Kill a run of agents at every durable step of engine and host: it must end as without a kill."""
