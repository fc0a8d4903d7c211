"""What Airflow loads of Sluice: the page, its place in the menu."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from sluice_airflow.page.links import PREFIX, ROUTE

__all__ = ["SluicePlugin"]


async def _page(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    """Serve the page. Every component loads plugins, and only the API server needs the app."""
    from sluice_airflow.page.app import app

    await app(scope, receive, send)


class SluicePlugin(AirflowPlugin):
    """The page below ``/sluice``, which Airflow's menu shows in its frame."""

    name = "sluice"
    fastapi_apps: ClassVar[list[Any]] = [{"app": _page, "url_prefix": f"/{PREFIX}", "name": "Sluice"}]
    external_views: ClassVar[list[Any]] = [
        {
            "name": "Sluice",
            "href": f"{PREFIX}/",  # relative: Airflow may be below a path
            "url_route": ROUTE,
            "destination": "nav",
            "icon": f"{PREFIX}/static/icon.svg",
            "icon_dark_mode": f"{PREFIX}/static/icon-dark.svg",
            "nav_top_level": True,
        }
    ]
