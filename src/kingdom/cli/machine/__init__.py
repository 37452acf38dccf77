"""Commands for the processes of a realm: roles, hosts and the tools of an agent."""
