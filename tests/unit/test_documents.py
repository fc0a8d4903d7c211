"""Documents lead where they say, and what the README tells a newcomer to write is valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.pipeline import load
from sluice.pipeline.suite import Suite
from sluice.shipped import CHECKOUT

ROOT = Path(str(CHECKOUT))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OWN = "## A pipeline of your own, in ten minutes"


def anchors(file: Path) -> set[str]:
    """Return the anchors that GitHub makes of a document's headings."""
    found: list[str] = []
    for heading in re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", file.read_text())):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


@pytest.mark.parametrize("file", DOCUMENTS, ids=[str(file.relative_to(ROOT)) for file in DOCUMENTS])
def test_each_link_leads_somewhere(file: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```", "", file.read_text())
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    lost = []
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue  # another host's
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_every_document_is_linked_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [file.name for file in (ROOT / "docs").glob("*.md") if f"(docs/{file.name}" not in readme] == []


def test_a_newcomers_first_pipeline_is_valid(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().partition(OWN)[2].partition("\n## ")[0]
    blocks = re.findall(r"(?ms)^```(\w+)\n(.*?)^```", section)
    shell, pipeline, suite, *_, lagging = (text for language, text in blocks if language != "bash" or "<<'PY'" in text)
    compile(shell.partition("<<'PY'\n")[2].partition("\nPY\n")[0], "send_orders.py", "exec")
    for folder in ("pipelines", "expectations"):
        (tmp_path / folder).mkdir()
    file = tmp_path / "pipelines" / "orders.yaml"
    (tmp_path / "expectations" / "orders.json").write_text(suite)
    last = pipeline.splitlines()[-1]
    for text in (pipeline, pipeline.replace(last, lagging)):
        file.write_text(text)
        assert len(Suite.of(load(file)).expectations) == 3
    assert load(file).schedule == "on_lag"
