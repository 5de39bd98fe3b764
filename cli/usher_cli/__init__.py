"""The `usher` command."""
