"""What Airflow loads of Sluice: the page with its place in the menu, and the order of runs that wait for a place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from sluice_airflow.page.links import PREFIX, ROUTE
from sluice_airflow.priority import LiveFirst

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
    """The page below ``/sluice``, which Airflow's menu shows in its frame; and a rule of priorities.

    Airflow reads a DAG back only with rules that a plugin names.
    """

    name = "sluice"
    fastapi_apps: ClassVar[list[Any]] = [{"app": _page, "url_prefix": f"/{PREFIX}", "name": "Sluice"}]
    priority_weight_strategies: ClassVar[list[Any]] = [LiveFirst]
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
