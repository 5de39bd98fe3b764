"""Thin shells around I/O that several programs need: files that change, an HTTP server in one's own loop, UDP."""
