"""Commands that show the court and the people's part in it: status, inbox, assignments, petitions."""
