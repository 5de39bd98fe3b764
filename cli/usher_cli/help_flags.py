"""How help is asked for."""

HELP_FLAGS = {"help_option_names": ["-h", "--help"]}
"""Context settings of each command that stands by itself: click keeps those of the first use."""
