"""Kill processes at every durable step of a course: it must end as without a kill."""
