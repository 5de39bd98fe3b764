"""What asking raises for a URL that was taken for one (`base_urls`)."""

from __future__ import annotations

import httpx
from websockets.exceptions import InvalidURI

UNUSABLE_URL = (httpx.InvalidURL, InvalidURI, ValueError, OverflowError, ExceptionGroup)
"""A resolver or a library takes less than we do. Trying several addresses at once, httpx raises a group of faults."""
