"""`kingdom up`: run every role, and show their state or their log."""
