"""What talks with a caller: the protocol of backends, their registry, and two that need no model (see docs/backends.md)."""
