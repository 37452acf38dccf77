"""The course of a whole court: a ticket becomes a pull request, which is followed until it is merged."""
