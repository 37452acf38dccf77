"""Who acts: the roles that turn what happens outside into assignments, have them done and tell people."""
