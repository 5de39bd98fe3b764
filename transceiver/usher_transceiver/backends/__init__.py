"""Backends of a call: what listens and answers."""
