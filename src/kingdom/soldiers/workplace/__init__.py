"""The folders, environment and checkout setup that agents work with."""
