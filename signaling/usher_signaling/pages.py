"""The demo page and the fleet page: static files beside this module, at `/`, `/fleet` and `/assets/`."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

DIRECTORY = Path(__file__).parent / "pages"


class _Assets(StaticFiles):
    """Static files that a browser asks about each time: a new release must not meet half of an old page."""

    path = "/assets"
    """The template of its route, for log and metrics: a mount puts none into the scope."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        scope["route"] = self
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def add_pages(app: FastAPI) -> None:
    """Serve the pages. They hold nothing: what they show comes over the API, with the key of who looks."""

    async def index() -> Response:
        """The demo page."""
        return FileResponse(DIRECTORY / "index.html", headers={"Cache-Control": "no-cache"})

    async def fleet() -> Response:
        """The fleet page."""
        return FileResponse(DIRECTORY / "fleet.html", headers={"Cache-Control": "no-cache"})

    app.add_api_route("/", index, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/fleet", fleet, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount(_Assets.path, _Assets(directory=DIRECTORY), name="assets")
