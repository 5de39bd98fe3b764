"""What a bench ran on, as its first line says it."""

import os
import platform


def describe() -> dict[str, object]:
    """Return CPUs, Python, kernel, and the load average of the last minute: other work on the machine."""
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 2),
    }


def line() -> str:
    """Return it as one line of text."""
    return " ".join(f"{name}={value}" for name, value in describe().items())
