"""The demo: a whole court in a throwaway directory, a story that is played in it, and how it is told."""
