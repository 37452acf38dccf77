"""`kingdom up`: run every role, and show their log."""
