"""Shell completion: the script for a shell, and the ids that it offers."""
