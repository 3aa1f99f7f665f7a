"""The page of ``msgstore map --html``, in Chromium, as somebody sees it who looks at it: what it draws, tells and marks.

Needs selenium, and Debian's packages chromium and chromium-driver. ``tox run -e browser`` fails where they are not there;
elsewhere the tests are skipped and say so. ``tox run -e browser -- --pictures`` draws the pictures of the documentation anew.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from msgstore.cli import map_page
from msgstore.cli.main import main
from msgstore.cli.map_data import MAX_SPANS

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests/data/msg-store"
PICTURES = ROOT / "docs/pictures"
NOW = 1_767_225_600  # the beginning of 2026
DAY = 86_400
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-device-scale-factor=1",
]  # fmt: skip
BLUE = (15, 109, 179)  # live, in the light scheme
HOSTILE = "<img src=x onerror=hacked=1><script>hacked=1<\\script>\"'"


def missing() -> str:
    """What is not installed; "" if everything is."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed: pip install selenium"
    return "" if CHROMIUM and DRIVER else "Chromium is not installed: apt-get install chromium chromium-driver"


@pytest.fixture(scope="module")
def driver(request, tmp_path_factory):
    if why := missing():
        if request.config.getoption("--needs-browser"):
            pytest.fail(why)
        pytest.skip(f"{why}; --needs-browser makes this a failure")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


class Browser:
    """A page in a window of some size and scheme."""

    def __init__(self, driver) -> None:
        self.driver = driver

    def look(self, page: Path, width: int = 1600, height: int = 900, scheme: str = "light", path: str = "") -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.point(0, 0)
        self.driver.get(page.as_uri())
        self.settle()

    def settle(self) -> None:
        """Until what is in sight is painted."""
        self.driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(arguments[0], 50)))"
        )

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str):
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.all(selector)]

    def point(self, x: float, y: float) -> None:
        event = {"type": "mouseMoved", "x": x, "y": y}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def keys(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def box(self, file: str) -> dict[str, float]:
        """Where the bar of a segment is."""
        return self.run(
            "return document.querySelector(`[data-file='${arguments[0]}'] .bar`).getBoundingClientRect().toJSON()", file
        )

    def hover(self, file: str, offset: float, size: int) -> dict[str, str]:
        """What the card says of a place in a segment of ``size`` bytes."""
        box = self.box(file)
        self.point(box["x"] + box["width"] * offset / size, box["y"] + box["height"] / 2)
        return self.card()

    def card(self) -> dict[str, str]:
        assert self.run("return !document.getElementById('card').hidden")
        lines = self.run(
            "return [...document.querySelectorAll('#card dt')].map((dt) => [dt.textContent, dt.nextSibling.textContent])"
        )
        return {"": self.texts("#card b")[0], **dict(lines)}

    def pixels(self, file: str) -> list[tuple[int, int, int]]:
        """The colours of a bar from left to right, at the middle of its height."""
        found = self.run(
            """const canvas = document.querySelector(`[data-file='${arguments[0]}'] .bar canvas`);
            return [...canvas.getContext("2d").getImageData(0, canvas.height >> 1, canvas.width, 1).data];""",
            file,
        )
        return list(zip(found[0::4], found[1::4], found[2::4], strict=True))

    def picture(self, name: str) -> None:
        """As small as it can be: a page has few colours."""
        from PIL import Image

        PICTURES.mkdir(exist_ok=True)
        image = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        few = image.quantize(160, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(PICTURES / name, optimize=True)


@pytest.fixture
def browser(driver):
    """Nothing may stand in its console when the test ends, and nothing may have been loaded."""
    driver.get_log("browser")
    browser = Browser(driver)
    yield browser
    assert driver.get_log("browser") == []
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


@pytest.fixture
def fixtures(tmp_path, monkeypatch):
    """The compacted stores, in a directory that is the working directory; their files are as old as given here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("msgstore.cli.commands.map.time.time", lambda: NOW)
    for name in ("v1_compacted", "v2_compacted"):
        shutil.copytree(DATA / name / "store", tmp_path / name)
        for age, path in zip((9, 8, 1, 0), sorted((tmp_path / name).glob("*.[rs]*q*")), strict=True):
            os.utime(path, (NOW - age * DAY - 60, NOW - age * DAY - 60))
    return tmp_path


def manifest(name: str) -> dict:
    return json.loads((DATA / name / "manifest.json").read_text())


def counts(name: str, path: Path, *, later: bool = False) -> Path:
    """The broker's reference counts; ``later``: when of the older two segments four messages of five are consumed."""
    found = manifest(name)
    old = {record["id"] for segment in found["segments"][:2] for record in segment["records"]} if later else set()
    alive = [m for m in found["messages"] if m["refcount"] and (m["id"] not in old or m["n"] % 5 == 0)]
    path.write_text("id,count\n" + "".join(f"{m['id']},{m['refcount']}\n" for m in alive))
    return path


def draw(*arguments: object, exit_code: int = 0) -> Path:
    page = Path("map.html").absolute()
    result = CliRunner().invoke(main, ["map", "--html", str(page), *map(str, arguments)])
    assert result.exit_code == exit_code, result.output
    return page


def wanted(request, browser: Browser, name: str) -> None:
    if request.config.getoption("--pictures"):
        browser.picture(name)


@pytest.mark.parametrize("name", ["v1_compacted", "v2_compacted"])
def test_every_segment_and_record_is_drawn_to_scale(name, browser, fixtures):
    segments = manifest(name)["segments"]
    browser.look(draw(name, "--refcounts", counts(name, Path("counts.csv"))))
    assert [text.split("\n")[0] for text in browser.texts(".row .file")] == [segment["name"] for segment in segments]
    widths = {segment["name"]: browser.box(segment["name"])["width"] for segment in segments}
    largest = max(segments, key=lambda segment: segment["size"])
    for segment in segments:
        assert widths[segment["name"]] == pytest.approx(widths[largest["name"]] * segment["size"] / largest["size"], abs=1)

    browser.run("document.getElementById('stretch').click()")
    browser.settle()
    assert {browser.box(segment["name"])["width"] for segment in segments} == {widths[largest["name"]]}
    alive = {m["id"] for m in manifest(name)["messages"] if m["refcount"]}
    looked_at = 0
    for segment in segments:
        pixels = browser.pixels(segment["name"])
        each = len(pixels) / segment["size"]
        wide = [record for record in segment["records"] if record["total_size"] * each >= 3 and record["id"] in alive]
        for record in wide:
            assert pixels[int((record["offset"] + record["total_size"] / 2) * each)] == BLUE, record
        layout = segment["layout"]
        for hole in layout.get("gaps") or layout.get("holes") or []:
            assert hole["size"] * each < 3 or pixels[int((hole["offset"] + hole["size"] / 2) * each)] != BLUE
        looked_at += len(wide)
        pieces = browser.run(
            "return document.querySelector(`[data-file='${arguments[0]}'] .bar`).dataset.pieces", segment["name"]
        )
        assert int(pieces) >= len(segment["records"])
    assert looked_at > 0.8 * len(alive)


def test_hovering_tells_the_record(browser, fixtures, request):
    name = "v2_compacted"
    browser.look(draw(name, "--refcounts", counts(name, Path("counts.csv"))), width=1200, height=640)
    references = {m["id"]: m["refcount"] for m in manifest(name)["messages"]}
    segment = manifest(name)["segments"][3]
    for record in segment["records"][::10]:
        told = browser.hover(segment["name"], record["offset"] + record["total_size"] / 2, segment["size"])
        assert told == {
            "": "live record", "id": record["id"], "segment": "3.sqs", "offset": f"{record['offset']:,}",
            "size": f"{record['total_size']:,} bytes", "record type": "message (type 3)",
            "references": str(references[record["id"]]),
        }  # fmt: skip
    second = manifest(name)["segments"][1]
    hole = max(second["layout"]["holes"], key=lambda hole: hole["size"])
    told = browser.hover("1.sqs", hole["offset"] + hole["size"] / 2, second["size"])
    assert told == {"": "hole", "segment": "1.sqs", "offset": f"{hole['offset']:,}", "size": f"{hole['size']:,} bytes"}
    record = segment["records"][40]
    browser.hover(segment["name"], record["offset"] + record["total_size"] / 2, segment["size"])
    wanted(request, browser, "map-v2-compacted.png")


def test_the_keyboard_goes_from_record_to_record(browser, fixtures):
    from selenium.webdriver.common.keys import Keys

    browser.look(draw("v2_compacted", "--refcounts", counts("v2_compacted", Path("counts.csv"))))
    records = manifest("v2_compacted")["segments"][0]["records"]
    for _ in range(20):
        browser.keys(Keys.TAB)
        if browser.run("return document.activeElement.classList.contains('bar')"):
            break
    assert browser.card()[""] == "header"
    seen = []
    for _ in range(6):
        browser.keys(Keys.ARROW_RIGHT)
        seen.append(browser.card().get("id", "hole"))
    assert [msg_id for msg_id in seen if msg_id != "hole"] == [record["id"] for record in records[:4]]  # two holes between them
    browser.keys(Keys.END)
    assert browser.card()["id"] == records[-1]["id"]
    assert records[-1]["id"] in browser.run("return document.getElementById('spoken').textContent")
    browser.keys(Keys.ARROW_DOWN)
    assert browser.card()["segment"] == "1.sqs"
    browser.keys(Keys.ESCAPE)
    assert browser.run("return document.getElementById('card').hidden")


def test_a_message_is_found_by_the_beginning_of_its_id(browser, fixtures):
    browser.look(draw("v1_compacted"))
    record = manifest("v1_compacted")["segments"][2]["records"][20]
    browser.all("#id")[0].send_keys(record["id"][:10])
    browser.all("#find button")[0].click()
    assert browser.card()["id"] == record["id"]
    browser.all("#id")[0].clear()
    browser.all("#id")[0].send_keys("f" * 32)
    browser.all("#find button")[0].click()
    assert browser.texts("#found") == [f"No message {'f' * 32} among the 301 records that this page shows separately."]


def test_choosing_a_policy_marks_what_it_would_touch(browser, fixtures, request):
    name = "v1_compacted"
    page = draw(name, "--refcounts", counts(name, Path("counts.csv"), later=True))
    browser.look(page, width=1200, height=640, scheme="dark")
    choices = browser.all(".policy")
    names = [re.split("\n| nothing", text)[0] for text in browser.texts(".policy")]
    assert names == ["unchanged", "combine", "half-empty", "never", "retention", "retention"]
    assert browser.all(".touched") == []

    choices[names.index("half-empty")].click()
    browser.settle()
    assert [row.get_attribute("data-file") for row in browser.all(".touched")] == ["0.rdq", "1.rdq"]
    assert browser.texts(".touched .does") == ["compact\nfrees about 97.2 KiB", "compact\nfrees about 97.8 KiB"]
    assert "compact 2: frees about 195.0 KiB (48 %)" in choices[names.index("half-empty")].text
    wanted(request, browser, "map-v1-compacted.png")
    browser.all(".only input")[0].click()
    assert [text.split("\n")[0] for text in browser.texts(".row .file")] == ["0.rdq", "1.rdq"]

    choices[names.index("combine")].click()
    assert [text.split("\n")[0] for text in browser.texts(".touched .does")] == ["combine with 1.rdq", "combine with 0.rdq"]
    choices[names.index("retention")].click()
    assert [text.split("\n")[0::2] for text in browser.texts(".touched .does")] == [
        ["drop", "loses 13 live messages"], ["drop", "loses 12 live messages"],
    ]  # fmt: skip
    choices[names.index("never")].click()
    assert browser.texts(".list p") == ["The policy changes no segment."]
    choices[0].click()
    assert len(browser.all(".row")) == 4
    assert browser.all(".touched, .does") == []


def test_damage_is_seen_and_told_and_torn_ends_are(browser, fixtures):
    store = Path(shutil.copytree(DATA / "v2_compacted" / "store", "broken"))
    data = bytearray((store / "3.sqs").read_bytes())
    record = manifest("v2_compacted")["segments"][3]["records"][100]
    data[record["offset"]] = 99
    (store / "3.sqs").write_bytes(data)
    (store / "2.sqs").write_bytes((store / "2.sqs").read_bytes()[:-10])
    browser.look(draw(store, exit_code=1))
    assert browser.texts(".spots summary") == ["2 damaged spans"]
    pixels = browser.pixels("3.sqs")
    at = int(record["offset"] * len(pixels) / len(data))
    reddish = [red > blue + 8 for red, _, blue in pixels]
    assert sum(reddish[:at]) == 0
    assert sum(reddish[at:]) > len(pixels[at:]) / 2
    browser.all(".spots button")[1].click()
    told = browser.card()
    assert (told[""], told["offset"], told["reason"]) == ("damaged", f"{record['offset']:,}", "unrecognised_record_type")
    torn = browser.hover("2.sqs", 0.9999, 1)
    assert (torn[""], torn["reason"]) == ("torn", "torn")
    assert "damaged: never collected" in browser.texts(".row .flag")


def test_an_empty_segment_has_nothing_to_tell(browser, fixtures):
    Path("empty").mkdir()
    Path("empty/0.sqs").touch()
    Path("empty/1.rdq").touch()
    browser.look(draw("empty", exit_code=1))  # no header
    assert len(browser.all(".row")) == 2
    for file in ("0.sqs", "1.rdq"):
        box = browser.box(file)
        browser.point(box["x"] + 1, box["y"] + 5)
        assert browser.run("return document.getElementById('card').hidden")
    browser.all(".bar")[0].click()


def test_nothing_on_disk_becomes_markup(browser, fixtures):
    shutil.copytree(DATA / "v2_compacted" / "store", HOSTILE.replace("/", ""))
    data = json.loads(_data_of(draw(HOSTILE.replace("/", ""))))
    [store] = data["stores"]
    store["spots"], store["spot_count"], store["unasked"] = [["0.sqs", 64, 87, HOSTILE]], 1, HOSTILE
    store["segments"][0] |= {"file": HOSTILE, "whys": [[1, len(data["words"])]]}
    for plan in store["plans"]:
        plan |= {"name": HOSTILE, "summary": HOSTILE, "error": HOSTILE, "provider": HOSTILE, "options": HOSTILE}
    data["words"].append(HOSTILE)
    page = Path("hostile.html").absolute()
    map_page.write_page(page, data)
    browser.look(page)
    assert HOSTILE in browser.texts(".row .file")
    assert HOSTILE in browser.texts(".spots td")
    browser.keys("\ue004" * 9)
    assert browser.run("return [typeof hacked, document.images.length, document.scripts.length]") == ["undefined", 0, 2]


def test_a_script_that_is_not_ours_does_not_run(driver, fixtures):
    page = draw("v2_compacted")
    page.write_text(page.read_text() + "<script>hacked = 1</script>")
    browser = Browser(driver)
    browser.look(page)
    assert browser.run("return typeof hacked") == "undefined"
    assert any("Content Security Policy" in line["message"] for line in driver.get_log("browser"))


def _data_of(page: Path) -> str:
    [text] = re.findall(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    return text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [800, 1600])
def test_it_fits_and_can_be_read(width, scheme, browser, fixtures):
    stores = sorted(DATA.glob("*/store"))
    browser.look(draw(*stores, exit_code=1), width=width, scheme=scheme)
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.run("return [...document.querySelectorAll('.bar')].every((bar) => bar.clientWidth > 2)")
    browser.all(".policy")[4].click()
    # The contrast of what is written, by the formula of the WCAG: 4.5 and more can be read.
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


def test_kinds_are_apart_without_colour(browser, fixtures):
    """Each swatch of the legend has a pattern or a grey of its own."""
    browser.look(draw(*sorted(DATA.glob("*/store")), *sorted((DATA / "v2_corrupt").glob("*/")), exit_code=1))
    swatches = browser.run(
        """return [...document.querySelectorAll("#legend canvas")].map((canvas) =>
          [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data])"""
    )
    greys = [[sum(data[at : at + 3]) // 48 for at in range(0, len(data), 4)] for data in swatches]
    assert len(greys) >= 5
    assert len({tuple(grey) for grey in greys}) == len(greys)


def test_a_million_records_in_thousands_of_segments(browser, fixtures, request):
    """How large the page is, and how long it takes to write and to draw. ``--map-records`` says of how many records."""
    import msgstore
    from msgstore.scan import FormatSet

    records = request.config.getoption("--map-records")
    form = FormatSet(msgstore.load_catalogue()).by_name("v2").format
    each = 500
    Path("big").mkdir()
    for segment in range(records // each):
        ids = [(segment * each + n).to_bytes(16) for n in range(each)]
        encoded, _ = form.encode(ids, [bytes(40 + n % 100) for n in range(each)])
        (Path("big") / f"{segment}.sqs").write_bytes(form.header + encoded)
    begin = time.perf_counter()
    page = draw("big")
    written = time.perf_counter()
    browser.look(page)
    looked = time.perf_counter()
    assert browser.texts(".totals dd")[0].strip() == f"{records // each:,}"
    assert any(text.startswith(f"{records:,}") for text in browser.texts(".totals dd"))
    assert len(browser.all(".row")) == min(records // each, 1000)
    assert page.stat().st_size < 12_000_000
    merged = browser.texts("#merged")[0]
    assert merged.startswith("There is more here") == (records + records // each > MAX_SPANS)
    browser.all(".policy")[2].click()
    print(
        f"\n{records:,} records in {records // each:,} segments: {page.stat().st_size / 1e6:.1f} MB, written in "
        f"{written - begin:.1f} s, on the screen {looked - written:.1f} s later"
    )
    assert looked - written < 30
