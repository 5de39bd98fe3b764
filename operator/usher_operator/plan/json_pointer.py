"""JSON pointers (RFC 6901)."""


def is_comparable(value: str) -> bool:
    """Return whether a `test` of a JSON Patch (RFC 6902, section 4.6) finds this value equal to itself.

    The API server compares the bytes of JSON, in which a character outside of plain text has several spellings.
    """
    return value.isascii() and all(character.isalnum() or character in "-_./: " for character in value)


def escape(name: str) -> str:
    """Return a name as one segment of a JSON pointer (section 3)."""
    return name.replace("~", "~0").replace("/", "~1")
