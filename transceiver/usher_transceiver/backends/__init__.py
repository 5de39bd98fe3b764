"""What talks with a caller: the protocol, the registry, and two backends that need no model (docs/backends.md)."""
