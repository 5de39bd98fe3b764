"""JSON pointers (RFC 6901)."""


def escape(name: str) -> str:
    """Return a name as one segment of a JSON pointer (section 3)."""
    return name.replace("~", "~0").replace("/", "~1")
