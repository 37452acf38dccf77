"""The web server: the HTTP API and the pages. Their actions have the nouns and verbs of the command line."""
