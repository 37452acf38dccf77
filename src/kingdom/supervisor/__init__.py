"""The supervisor of one machine: it runs the processes of the roles and restarts roles without a heartbeat."""
