"""The routes of the public API: thin, one file per protocol."""
