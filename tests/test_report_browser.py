"""The page of ``msgstore rabbitmq report --html`` in Chromium."""

from __future__ import annotations

import shutil

import pytest

from rabbitmq_nodes import DATA, unpack
from support import command
from test_map_browser import HOSTILE, browser, driver  # noqa: F401 - fixtures

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("scheme", "width"), [("light", 1300), ("dark", 420)])
def test_page_shows_the_whole_node(browser, tmp_path, scheme, width):  # noqa: F811
    node, page = unpack(tmp_path), tmp_path / "node.html"
    command("rabbitmq", "report", node, "--html", page, code=3)
    browser.look(page, width=width, scheme=scheme)
    assert browser.texts("h1") == ["RabbitMQ node sre@localhost"]
    assert browser.texts("h2") == [f"Virtual host {name}" for name in ("/", "billing/eu", "orders", "ünïcode 日本")]
    cells = browser.texts("td")
    assert cells[cells.index("fan.b") :][:8] == ["fan.b", "v2", "690", "3,508,311", "454", "236", "0", "may have been consumed"]
    assert len(browser.texts("svg rect.live")) == 2
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.run(overflow) <= 0


def test_page_shows_damage_and_hostile_names_as_text(browser, tmp_path):  # noqa: F811
    node = shutil.copytree(DATA / "rabbitmq-3.10/clean", tmp_path / "node")
    next(node.rglob("0.rdq")).write_bytes(b"\x01" * 500)
    next(node.rglob(".queue_name")).write_bytes(f"VHOST: /\nQUEUE: {HOSTILE}\n".encode())
    page = tmp_path / "node.html"
    command("rabbitmq", "report", node, "--html", page, code=1)
    browser.look(page)
    assert "Damage" in browser.texts("h2")
    assert any("script" in text for text in browser.texts("td.bad"))
    assert browser.run("return window.hacked") is None
