"""Serves Data Docs out of ``SLUICE_HOME``: confined to a pipeline's pages, and without a request to another host.

Great Expectations' pages load Bootstrap and scripts from other hosts, and they show values of records unescaped. So
Bootstrap's styles come from here, and of a page only harmless markup is left: a page of the same origin could use the
reader's session. The index is written here, because theirs is made by a script.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from urllib.parse import quote

from fastapi import HTTPException
from fastapi.responses import FileResponse, HTMLResponse, Response

from sluice.home import Home
from sluice_airflow.page.markup import harmless

__all__ = ["POLICY", "serve", "site_of"]

POLICY = (
    "sandbox allow-same-origin; default-src 'none'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
"""The Content-Security-Policy of every answer. With another origin a browser would ask for the styles without a login;
it gives a page nothing in which no script may run."""

_TYPES = {".html", ".css", ".png", ".gif", ".svg", ".ico", ".otf", ".woff", ".woff2"}


def site_of(pipeline: str) -> Path:
    """Return the folder of a pipeline's pages."""
    return Path(Home.from_env().data_docs, pipeline, "gx", "uncommitted", "data_docs", "local_site")


def serve(pipeline: str, page: str, static: str) -> Response:
    """Return one file of a pipeline's Data Docs.

    Parameters
    ----------
    page
        Its path below :func:`site_of`.
    static
        The address of the app's static files.

    Raises
    ------
    HTTPException
        404 if there is no such file, or if it lies elsewhere.
    """
    try:
        site = site_of(pipeline).resolve()
        quality = Path(Home.from_env().data_docs).resolve()
        file = (site / page).resolve()
        inside = site.is_relative_to(quality / pipeline) and site != quality and file.is_relative_to(site)
        there = pipeline not in (".", "..") and inside and file.suffix in _TYPES and file.is_file()
    except (OSError, ValueError):  # too long a name, or one with a NUL
        there = False
    if not there:
        raise HTTPException(404, "There is no such page. Pages of the newest 50 runs are kept.")
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
    if file == site / "index.html":
        return HTMLResponse(_index(pipeline, site, static), headers=headers)
    if file.suffix != ".html":
        return FileResponse(file, headers=headers)
    shown = harmless(file.read_text(encoding="utf-8", errors="replace"), file.relative_to(site).as_posix())
    return HTMLResponse(_document(f"Data Docs of {pipeline}", f"<body>{shown}", static), headers=headers)


def _document(title: str, body: str, static: str) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>{_styles(static)}'
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head>{body}</body></html>'


def _styles(static: str) -> str:
    files = ("vendor/bootstrap/bootstrap.min.css", "data_docs.css")
    return "".join(f'<link rel="stylesheet" href="{escape(static)}/{file}">' for file in files)


def _index(pipeline: str, site: Path, static: str) -> str:
    pages = sorted(site.glob("validations/*/*/*/*.html"), key=lambda page: (page.parent.name, page.name), reverse=True)
    rows = "".join(
        f'<tr><td><a href="{quote(page.relative_to(site).as_posix())}">{escape(page.parents[1].name)}</a></td>'
        f"<td>{escape(page.parents[2].name)}</td><td>{escape(_time(page.parent.name))}</td></tr>"
        for page in pages
    )
    suites = " · ".join(
        f'<a href="{quote(page.relative_to(site).as_posix())}">{escape(page.stem)}</a>'
        for page in sorted(site.glob("expectations/*.html"))
    )
    title = f"Data Docs of {pipeline}"
    body = (
        f'<body class="sluice-index"><h1>{escape(title)}</h1>'
        f"<p>Suites: {suites or 'none'}</p><table><thead><tr><th>Run</th><th>Suite</th><th>Validated</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )
    return _document(title, body, static)


def _time(stamp: str) -> str:
    # 20261122T193103.137570Z
    found = re.fullmatch(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)\.\d+Z", stamp)
    return "{}-{}-{} {}:{}:{} UTC".format(*found.groups()) if found else stamp
