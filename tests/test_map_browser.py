"""The page of ``msgstore map --html`` in Chromium: what it draws, shows and marks.

Needs Debian's packages chromium and chromium-driver. ``tox run -e browser`` fails where they are missing; elsewhere the tests
are skipped. ``tox run -e browser -- --pictures`` draws the pictures of the documentation again.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

import msgstore
from msgstore.cli.commands.map import write_page
from msgstore.cli.spans import MAX_SPANS
from msgstore.scan import FormatSet
from support import command, counts_file

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests/data/msg-store"
NOW = 1_767_225_600  # the beginning of 2026
DAY = 86_400
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = ["headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking", "hide-scrollbars"]
TAB, END, LEFT, UP, RIGHT, DOWN, ESCAPE = "\ue004\ue010\ue012\ue013\ue014\ue015\ue00c"
BLUE = [15, 109, 179]  # live, in the light scheme
HOSTILE = "<img src=x onerror=hacked=1><script>hacked=1<\\script>\"'"


class Browser:
    """A session of the WebDriver protocol."""

    def __init__(self, port: int, profile: Path) -> None:
        self.url = f"http://127.0.0.1:{port}/session"
        options = {"binary": CHROMIUM, "args": [f"--{flag}" for flag in (*FLAGS, f"user-data-dir={profile}")]}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.url += "/" + self.call("", capabilities={"alwaysMatch": capabilities})["sessionId"]

    def call(self, path: str, **body: object):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command: str, **parameters: object) -> dict:
        return self.call("/goog/cdp/execute", cmd=command, params=parameters)

    def run(self, script: str, *arguments: object):
        return self.call("/execute/sync", script=script, args=arguments)

    def look(self, page: Path, width: int = 1600, height: int = 900, scheme: str = "light") -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.point(0, 0)
        self.call("/url", url=page.as_uri())
        self.settle()

    def settle(self) -> None:
        """Wait until the visible canvases are painted."""
        script = "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(arguments[0], 50)))"
        self.call("/execute/async", script=script, args=[])

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)", selector)

    def click(self, selector: str, at: int = 0) -> None:
        self.run("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, at)

    def keys(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def point(self, x: float, y: float) -> None:
        self.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def box(self, file: str) -> dict[str, float]:
        script = "return document.querySelector(`[data-file='${arguments[0]}'] .bar`).getBoundingClientRect().toJSON()"
        return self.run(script, file)

    def hover(self, file: str, share: float) -> dict[str, str]:
        """Return what the card says of a place in a segment."""
        box = self.box(file)
        self.point(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        return self.card()

    def has_card(self) -> bool:
        return not self.run("return document.getElementById('card').hidden")

    def card(self) -> dict[str, str]:
        assert self.has_card()
        script = "return [...document.querySelectorAll('#card dt')].map((dt) => [dt.textContent, dt.nextSibling.textContent])"
        return {"": self.texts("#card b")[0], **dict(self.run(script))}

    def pixels(self, file: str) -> list[list[int]]:
        """Return the colours of a bar from left to right, at the middle of its height."""
        found = self.run(
            """const canvas = document.querySelector(`[data-file='${arguments[0]}'] canvas`);
            return [...canvas.getContext("2d").getImageData(0, canvas.height >> 1, canvas.width, 1).data];""",
            file,
        )
        return [found[at : at + 3] for at in range(0, len(found), 4)]

    def complaints(self) -> list[str]:
        """Return what the console has got since the last call."""
        return [line["message"] for line in self.call("/se/log", type="browser")]


@pytest.fixture(scope="module")
def driver(request, tmp_path_factory):
    if not (CHROMIUM and DRIVER):
        why = "Chromium is not installed: apt-get install chromium chromium-driver"
        if request.config.getoption("--needs-browser"):
            pytest.fail(why)
        pytest.skip(f"{why}; --needs-browser makes this a failure")
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(int(found[1]) for line in process.stdout if (found := re.search(r"successfully on port (\d+)", line)))
            browser = Browser(port, tmp_path_factory.mktemp("chromium"))
            yield browser
            urllib.request.urlopen(urllib.request.Request(browser.url, method="DELETE"), timeout=60).close()
        finally:
            process.terminate()


@pytest.fixture
def browser(driver):
    """At the end, its console must be empty, and nothing may have been loaded."""
    driver.complaints()
    yield driver
    assert driver.complaints() == []
    assert driver.run("return performance.getEntriesByType('resource').length") == 0


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """Change to a directory with copies of the compacted stores, whose files have known ages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("msgstore.cli.commands.map.time.time", lambda: NOW)
    for name in ("v1_compacted", "v2_compacted"):
        shutil.copytree(DATA / name / "store", tmp_path / name)
        for age, path in zip((9, 8, 1, 0), sorted((tmp_path / name).glob("*.[rs]*q*")), strict=True):
            os.utime(path, (NOW - age * DAY - 60, NOW - age * DAY - 60))


def manifest(name: str) -> dict:
    return json.loads((DATA / name / "manifest.json").read_text())


def counts(name: str, *, later: bool = False) -> Path:
    """Write the broker's reference counts; ``later``: four of five messages of the two older segments are consumed."""
    found = manifest(name)
    old = {record["id"] for segment in found["segments"][:2] for record in segment["records"]} if later else set()
    alive = [m for m in found["messages"] if m["refcount"] and (m["id"] not in old or m["n"] % 5 == 0)]
    return counts_file(Path("counts.csv"), ((bytes.fromhex(m["id"]), m["refcount"]) for m in alive))


def draw(*arguments: object, code: int = 0) -> Path:
    page = Path("map.html").absolute()
    command("map", "--html", page, *arguments, code=code)
    return page


def take_picture(request, browser: Browser, name: str) -> None:
    if request.config.getoption("--pictures"):
        (ROOT / "docs/pictures" / name).write_bytes(base64.b64decode(browser.devtools("Page.captureScreenshot")["data"]))


@pytest.mark.parametrize("name", ["v1_compacted", "v2_compacted"])
def test_page_draws_records_to_scale(name, browser, stores):
    segments = manifest(name)["segments"]
    browser.look(draw(name, "--refcounts", counts(name)))
    assert browser.texts(".row b") == [segment["name"] for segment in segments]
    largest = max(segments, key=lambda segment: segment["size"])
    full = browser.box(largest["name"])["width"]
    for segment in segments:
        assert browser.box(segment["name"])["width"] == pytest.approx(full * segment["size"] / largest["size"], abs=1)
    browser.click("#stretch")
    browser.settle()
    assert {browser.box(segment["name"])["width"] for segment in segments} == {full}
    alive = {m["id"] for m in manifest(name)["messages"] if m["refcount"]}
    seen = 0
    for segment in segments:
        pixels, layout = browser.pixels(segment["name"]), segment["layout"]
        each = len(pixels) / segment["size"]
        for record in segment["records"]:
            if record["total_size"] * each >= 3 and record["id"] in alive:
                seen += 1
                assert pixels[int((record["offset"] + record["total_size"] / 2) * each)] == BLUE, record
        for hole in layout.get("gaps") or layout.get("holes") or []:
            assert hole["size"] * each < 3 or pixels[int((hole["offset"] + hole["size"] / 2) * each)] != BLUE
    assert seen > 0.8 * len(alive)


def test_page_describes_record_under_pointer(browser, stores, request):
    name = "v2_compacted"
    browser.look(draw(name, "--refcounts", counts(name)), width=1200, height=640)
    references = {m["id"]: m["refcount"] for m in manifest(name)["messages"]}
    _, second, _, last = manifest(name)["segments"]
    hole = max(second["layout"]["holes"], key=lambda hole: hole["size"])
    card = browser.hover("1.sqs", (hole["offset"] + hole["size"] / 2) / second["size"])
    assert card == {"": "hole", "segment": "1.sqs", "offset": f"{hole['offset']:,}", "size": f"{hole['size']:,} bytes"}
    for record in last["records"][::20]:
        assert browser.hover("3.sqs", (record["offset"] + record["total_size"] / 2) / last["size"]) == {
            "": "live record", "id": record["id"], "segment": "3.sqs", "offset": f"{record['offset']:,}",
            "size": f"{record['total_size']:,} bytes", "record type": "message (type 3)",
            "references": str(references[record["id"]]),
        }  # fmt: skip
    take_picture(request, browser, "map-v2-compacted.png")


def test_page_steps_and_finds_by_keyboard(browser, stores):
    browser.look(draw("v2_compacted", "--refcounts", counts("v2_compacted")))
    records = manifest("v2_compacted")["segments"][0]["records"]
    while not browser.run("return document.activeElement.classList.contains('bar')"):
        browser.keys(TAB)
    assert browser.card()[""] == "header"
    seen = []
    for _ in range(6):
        browser.keys(RIGHT)
        seen.append(browser.card().get("id", "hole"))
    assert [msg_id for msg_id in seen if msg_id != "hole"] == [record["id"] for record in records[:4]]
    browser.keys(END)
    assert browser.card()["id"] == records[-1]["id"]
    browser.keys(DOWN)
    assert browser.card()["segment"] == "1.sqs"
    browser.keys(UP, LEFT)
    assert browser.card()["segment"] == "0.sqs"
    browser.keys(ESCAPE)
    assert not browser.has_card()
    record = manifest("v2_compacted")["segments"][3]["records"][20]
    for wanted, message in ((record["id"][:10], ""), ("f" * 32, f"No message {'f' * 32} among")):
        browser.run("document.getElementById('id').value = arguments[0]", wanted)
        browser.click("#find button")
        assert browser.texts("#found")[0].startswith(message)
        assert browser.card()["id"] == record["id"]


def test_chosen_policy_marks_its_segments(browser, stores, request):
    name = "v1_compacted"
    browser.look(draw(name, "--refcounts", counts(name, later=True)), width=1200, height=640, scheme="dark")
    names = [text.split("\n")[0] for text in browser.texts(".policy")]
    assert names == ["unchanged", "combine", "half-empty", "never", "retention", "retention"]
    assert browser.texts(".touched") == []
    browser.click(".policy input", names.index("half-empty"))
    browser.settle()
    assert browser.texts(".touched b") == ["0.rdq", "1.rdq"]
    assert browser.texts(".does") == ["compact\nfrees about 97.2 KiB", "compact\nfrees about 97.8 KiB"]
    assert "compact 2: frees about 195.0 KiB (48 %)" in browser.texts(".policy")[names.index("half-empty")]
    take_picture(request, browser, "map-v1-compacted.png")
    browser.click(".policy input", names.index("combine"))
    assert [text.split("\n")[0] for text in browser.texts(".does")] == ["combine with 1.rdq", "combine with 0.rdq"]
    browser.click(".policy input", names.index("retention"))
    losses = [text.split("\n")[0::2] for text in browser.texts(".does")]
    assert losses == [["drop", "loses 13 live messages"], ["drop", "loses 12 live messages"]]
    for idle in ("never", "unchanged"):
        browser.click(".policy input", names.index(idle))
        assert browser.texts(".touched, .does") == []


def test_page_shows_damage_and_torn_end(browser, stores):
    store = Path("v2_compacted")
    data = bytearray((store / "3.sqs").read_bytes())
    record = manifest("v2_compacted")["segments"][3]["records"][100]
    data[record["offset"]] = 99
    (store / "3.sqs").write_bytes(data)
    (store / "2.sqs").write_bytes((store / "2.sqs").read_bytes()[:-10])
    (store / "4.sqs").touch()
    browser.look(draw(store, code=1))
    assert browser.texts("summary") == ["2 damaged spans"]
    reddish = [red > blue + 8 for red, _, blue in browser.pixels("3.sqs")]
    at = int(record["offset"] * len(reddish) / len(data))
    assert sum(reddish[: at - 1]) == 0
    assert sum(reddish[at:]) > len(reddish[at:]) / 2
    browser.click("td button", 1)
    card = browser.card()
    assert (card[""], card["offset"], card["reason"]) == ("damaged", f"{record['offset']:,}", "unrecognised_record_type")
    assert browser.texts(".row small")[-1] == "damaged: never collected"
    card = browser.hover("2.sqs", 0.9999)
    assert (card[""], card["reason"]) == ("torn", "torn")
    box = browser.box("4.sqs")  # an empty segment has nothing to show
    browser.point(box["x"] + 1, box["y"] + 5)
    assert not browser.has_card()


def test_page_runs_no_other_script(driver, stores):
    """Names and reasons never become markup, and the page's policy allows only its own script."""
    page = draw("v2_compacted")
    [text] = re.findall(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    data = json.loads(text)
    [store] = data["stores"]
    store |= {"path": HOSTILE, "damage": [["0.sqs", 64, 87, HOSTILE]], "damage_count": 1}
    store["segments"][0] |= {"file": HOSTILE, "pieces": [[25_000, "hole", HOSTILE, HOSTILE, HOSTILE, 1]]}
    for plan in store["plans"]:
        plan |= {"name": HOSTILE, "summary": HOSTILE, "error": HOSTILE, "provider": HOSTILE, "options": HOSTILE}
    driver.complaints()
    write_page(page, data)
    driver.look(page)
    assert HOSTILE in driver.texts(".row b") + driver.texts("td")
    driver.keys(*TAB * 12)
    assert driver.run("return [typeof hacked, document.images.length, document.scripts.length]") == ["undefined", 0, 2]
    assert driver.complaints() == []
    page.write_text(page.read_text() + "<script>hacked = 1</script>")
    driver.look(page)
    assert driver.run("return typeof hacked") == "undefined"
    assert any("Content Security Policy" in line for line in driver.complaints())


@pytest.mark.parametrize(("width", "scheme"), [(800, "light"), (1600, "dark")])
def test_page_fits_and_is_readable(width, scheme, browser, stores):
    """Also without colour: each swatch of the legend has a pattern or a grey of its own."""
    stores = [*sorted(DATA.glob("*/store")), *sorted((DATA / "v2_corrupt").glob("*/"))]
    browser.look(draw(*stores, code=1), width=width, scheme=scheme)
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.run("return [...document.querySelectorAll('.bar')].every((bar) => bar.clientWidth > 2)")
    # The contrast of texts, by the formula of the WCAG: 4.5 and more can be read.
    ratios = browser.run(
        """const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
          .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
          .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
        const back = (element) => { for (; element; element = element.parentElement) {
          const colour = getComputedStyle(element).backgroundColor;
          if (!colour.endsWith(", 0)")) return light(colour); } };
        return [...document.querySelectorAll("h1, h2, p, dt, dd, small, label, b, span")]
          .filter((element) => element.textContent)
          .map((element) => { const [a, b] = [light(getComputedStyle(element).color), back(element)];
            return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.className]; });"""
    )
    assert min(ratios)[0] >= 4.5, min(ratios)
    swatches = browser.run(
        """return [...document.querySelectorAll("#legend canvas")].map((canvas) =>
          [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data])"""
    )
    greys = {tuple(sum(data[at : at + 3]) // 48 for at in range(0, len(data), 4)) for data in swatches}
    assert len(greys) == len(swatches) >= 5


def test_page_of_many_records_is_drawn(browser, stores, request):
    """Also prints how large the page is, and how long it takes. ``--map-records`` says of how many records."""
    records, each = request.config.getoption("--map-records"), 500
    form = FormatSet(msgstore.load_catalogue()).by_name("v2").format
    Path("big").mkdir()
    for segment in range(records // each):
        ids = [(segment * each + n).to_bytes(16) for n in range(each)]
        encoded, _ = form.encode(ids, [bytes(40 + n % 100) for n in range(each)])
        Path("big", f"{segment}.sqs").write_bytes(form.header + encoded)
    begin = time.perf_counter()
    page = draw("big")
    written = time.perf_counter()
    browser.look(page)
    shown = time.perf_counter()
    assert len(browser.texts(".row")) == records // each
    assert browser.texts(".totals dd")[1].startswith(f"{records:,}")
    assert page.stat().st_size < 12_000_000
    is_merged = browser.texts("#merged")[0].startswith("There is more here")
    assert is_merged == (records + records // each > MAX_SPANS)
    size = page.stat().st_size / 1e6
    print(f"\n{records:,} records: {size:.1f} MB, written in {written - begin:.1f} s, shown in {shown - written:.1f} s")
    assert shown - written < 30
