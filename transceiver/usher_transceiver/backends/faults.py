"""How it is told that somebody's code failed: one line for the operator of the process, and nothing for callers."""

from structlog.typing import FilteringBoundLogger


def log_fault(to: FilteringBoundLogger, message: str, error: BaseException) -> None:
    """Log what a backend raised, in one line; where it was raised only at level debug."""
    to.error(message, problem=f"{type(error).__name__}: {error}")
    to.debug(message, exc_info=error)
