"""A real API server in a browser: the page with its button, and the form of a connection with its button."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from tests.fixtures.airflow_tables import copy_tables
from tests.fixtures.browser import ApiServer, Browser, api_server, browser, is_there
from tests.fixtures.showcase import PIPELINE, Past, data_docs, fill, quarantine

from sluice.ledger import Ledger

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(not is_there(), reason="no Chromium here: apt-get install chromium chromium-driver"),
]

PROJECT = Path(__file__).resolve().parents[2]
MARKUP = "<img src=x onerror=document.title='markup'>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = tmp_path_factory.mktemp("page")
    home, pipelines = folder / "home", folder / "pipelines"
    pipelines.mkdir()
    for name in ("orders", "idle"):
        (pipelines / f"{name}.yaml").write_text(PIPELINE.format(name=name, recovery="ignore_range"))
    past = Past(10_000, partitions=1, refused=0.1, losses={3: 17}, verdicts={1: "failed"})
    fill(Ledger.open(f"sqlite:///{home}/ledger.db"), "orders", past)
    quarantine(home / "orders_quarantine", [("decode", None, 4), (MARKUP, MARKUP, 2)])
    data_docs(home, "orders", "scheduled__1", "<p>judged it is</p>")
    env = {
        "SLUICE_HOME": str(home),
        "SLUICE_PIPELINES": str(pipelines),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW_CONN_KAFKA_DEFAULT": '{"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}',
    }
    users, plugins = {"ada": "admin", "vic": "viewer"}, PROJECT / "plugins"
    copy_tables(folder / "tables.db")
    with api_server(
        folder / "airflow", dags=PROJECT / "dags", plugins=plugins, users=users, env=env, database=folder / "tables.db"
    ) as up:
        yield up


@pytest.fixture(scope="module")
def window(server: ApiServer) -> Iterator[Browser]:
    with browser(server) as made:
        made.login("ada")
        yield made


@pytest.fixture(autouse=True)
def calm(window: Browser, server: ApiServer) -> Iterator[None]:
    """In no test does the page ask another host, or fail."""
    window.dark(False)
    yield
    window.listen()
    strangers = {url for url in window.asked if not url.startswith((server.url, "data:", "blob:", "about:", "chrome"))}
    assert (strangers, window.said) == (set(), [])
    window.asked.clear()


def spans(window: Browser) -> str:
    return window.attribute(".charts[data-spans]", "data-spans")


def colours(window: Browser) -> set[str]:
    """Return the colours of the bars."""
    script = """
        const canvas = document.querySelector('.charts canvas'), found = new Set();
        const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255)
            found.add('#' + [...data.slice(i, i + 3)].map(v => v.toString(16).padStart(2, '0')).join(''));
        return [...found];
    """
    return set(window.run(script))


def test_page_is_walked_from_all_pipelines_to_one_by_keyboard(window: Browser) -> None:
    window.open("/sluice/")
    assert window.text(".glance tbody tr:nth-child(2)").startswith("orders")
    assert "never ran" in window.text(".glance tbody tr:nth-child(1)")
    window.wait(lambda: "UNKNOWN" in window.text(".glance tbody"))
    for _ in range(50):
        if window.run("return document.activeElement.textContent") == "orders":
            break
        window.press(Keys.TAB)
    window.press(Keys.ENTER)
    window.wait(lambda: window.text("h1") == "orders")
    assert window.driver.current_url.endswith("?pipeline=orders")
    window.driver.back()
    window.wait(lambda: window.text("h1") == "Pipelines")


def test_page_shows_runs_as_bars_as_a_list_and_one_by_one(window: Browser) -> None:
    window.open("/sluice/?pipeline=orders")
    assert spans(window) == "200"
    assert window.driver.title == "orders · Sluice"
    window.wait(lambda: MARKUP in window.text("main"))  # values of records are text
    window.wait(lambda: {"#5b8def", "#f59e0b"} <= colours(window))
    window.click(".part.quarantined")
    assert "#f59e0b" not in colours(window)
    window.click(".sizes label:last-of-type span")
    window.wait(lambda: "50 runs" in window.text(".told"))
    assert spans(window) == "200"

    window.open("/sluice/?pipeline=orders")
    rows = "document.querySelectorAll('td.id').length"
    window.wait(lambda: window.run(f"return {rows}") == 25)
    window.run("[...document.querySelectorAll('button')].find(b => b.textContent === 'Older runs').click()")
    window.wait(lambda: window.run(f"return {rows}") == 50)

    charts = ".charts[data-spans]"  # arrow keys walk the runs, and Enter opens one
    newest = window.text(".told")
    window.type(charts, Keys.END)
    assert window.text(".told") == newest
    window.type(charts, Keys.ARROW_LEFT)
    window.wait(lambda: "failed" in window.text(".told"))
    run = next(part for part in window.text(".told").split(" · ") if part.startswith("scheduled__"))
    window.type(charts, Keys.ENTER)
    assert window.text("dialog h2") == run
    window.wait(lambda: "column values to be between" in window.text("dialog"))
    assert "41 unexpected" in window.text("dialog")
    window.press(Keys.ESCAPE)
    window.wait(lambda: not window.run("return document.querySelector('dialog')"))


def test_page_is_dark_as_the_system_is_and_within_airflow_as_airflow_is(window: Browser) -> None:
    background = "return getComputedStyle(document.documentElement).backgroundColor"
    window.dark(True)
    window.open("/sluice/?pipeline=orders")
    spans(window)
    assert window.run(background) == "rgb(11, 11, 13)"
    window.dark(False)
    window.wait(lambda: window.run(background) == "rgb(255, 255, 255)")
    window.run("localStorage.setItem('theme', 'dark')")
    window.open("/plugin/sluice")
    window.driver.switch_to.frame(window.find("iframe"))
    window.find(".glance")
    window.wait(lambda: window.run(background) == "rgb(11, 11, 13)")
    window.driver.switch_to.default_content()
    window.run("localStorage.removeItem('theme')")


def test_page_within_airflow_triggers_the_maintenance_dag_and_links_data_docs(
    window: Browser, server: ApiServer
) -> None:
    window.open("/plugin/sluice/sluice/?pipeline=orders")
    window.driver.switch_to.frame(window.find("iframe"))
    assert window.text("h1") == "orders"
    window.click(".bar .act:not([disabled])")
    assert "17 offsets" in window.text("dialog")
    window.wait(lambda: "paused" in window.text("dialog .said"))
    window.type("dialog .main:not([disabled])", Keys.ENTER)
    assert "orders.maintenance" in window.text("#notice")
    (run,) = server.ask("/api/v2/dags/orders.maintenance/dagRuns", "ada")["dag_runs"]
    assert (run["conf"]["redrive"], run["triggering_user_name"]) == ("lost", "ada")
    assert server.ask("/api/v2/dags/orders.maintenance", "ada")["is_paused"] is False
    logged = server.ask("/api/v2/eventLogs?dag_id=orders.maintenance", "ada")["event_logs"]
    assert ("trigger_dag_run", "ada") in {(entry["event"], entry["owner"]) for entry in logged}

    window.click("header .links a")
    window.driver.switch_to.default_content()
    window.wait(lambda: "/sluice/data-docs/orders/" in window.driver.current_url)
    window.click("tbody a")
    assert "judged it is" in window.text("body")

    window.login("vic")  # who may not trigger sees the button, and cannot press it
    window.open("/sluice/?pipeline=orders")
    assert "orders.maintenance" in window.attribute(".bar .act[disabled]", "title")
    window.login("ada")


def test_kafka_connection_is_made_in_the_form_and_tested_by_its_button(window: Browser, server: ApiServer) -> None:
    window.open("/connections")
    press(window, "Add Connection")
    window.type("input[name=connection_id]", "shop")
    kind = "[role=dialog] input[role=combobox]"
    window.type(kind, "Apache Kafka")
    window.type(kind, Keys.ENTER)
    window.type("input[name=port]", "9092")
    press(window, "Extra Fields")
    assert "null" not in window.text("[role=dialog]")
    window.type("input[name='element_bootstrap.servers']", "127.0.0.1:1")
    press(window, "Save")
    window.click("[aria-label='Test Connection']")
    window.wait(lambda: "connections/test" in str(window.listen() or window.asked))
    stored = server.ask("/api/v2/connections/shop", "ada")
    assert (stored["conn_type"], stored["port"]) == ("kafka", 9092)
    assert '"bootstrap.servers": "127.0.0.1:1"' in stored["extra"]


def press(window: Browser, words: str) -> None:
    """Press the button with these words, once it is there."""

    def found() -> bool:
        buttons = [b for b in window.driver.find_elements("css selector", "button") if b.text.strip() == words]
        if buttons:
            buttons[-1].click()
        return bool(buttons)

    window.wait(found)
