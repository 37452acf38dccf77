"""What people can look up and do, for every user interface: the command line, the screen and the web."""
