"""The web server on real stores."""
