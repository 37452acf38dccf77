"""Who may use the web interface: rights, credentials, and a record of what people did there."""
