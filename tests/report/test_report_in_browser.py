"""The page as a reader sees it: rendered by Chromium, measured, and printed."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ddp_ladder.gates.file import Verdict
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import LadderResults
from make_records import (
    make_failed_record,
    make_gate,
    make_judged,
    make_plan_of,
    make_record,
    make_specs,
    records_by_name,
)
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
QUIET = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
MOST_PAGES = 4
SMALLEST_TEXT_PX = 11
MANY_GPUS = ["1x1", "1x2", "1x4", "2x1", "2x4", "4x4", "8x4"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{CHROMIUM} is missing: CI has to look at the report")
        pytest.skip(f"{CHROMIUM} is missing: the report is not looked at")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()


def efficiency(spec: RunSpec) -> float:
    return 1.0 if spec.world_size == 1 else 0.95 - 0.01 * spec.world_size


def full() -> LadderResults:
    specs = make_specs(["1x1", "1x2", "2x1"])
    gates = {
        stage: Verdict.from_json(make_gate(stage, judged=[make_judged(scale)]))
        for stage, scale in (("stage1", "1x1"), ("stage2", "1x2"), ("stage3", "2x1"))
    }
    records = [make_record(s, 800 * s.world_size * efficiency(s)) for s in specs]
    return LadderResults(make_plan_of(specs), records_by_name(records), gates, ())


def closed() -> LadderResults:
    specs = make_specs(["1x1", "1x2", "1x4", "2x4"], variants=["default", "gloo"], device="cuda")
    records = [
        make_failed_record(s, why="rank 1: RuntimeError: " + "/very/long/path" * 12)
        if (s.variant, str(s.scale)) == ("gloo", "1x4")
        else make_record(s, 2470 * s.world_size * (0.41 if s.world_size == 4 else efficiency(s)))
        for s in specs
        if s.nodes == 1
    ]
    failing = make_judged("1x4", ok=False, measured="efficiency 0.41", next_step="fix it")
    gates = {
        "stage1": Verdict.from_json(make_gate("stage1")),
        "stage2": Verdict.from_json(make_gate("stage2", "closed", judged=[failing])),
    }
    warnings = ("results/runs/x/record.json: the record is damaged; it is left out",)
    return LadderResults(make_plan_of(specs), records_by_name(records), gates, warnings)


def many() -> LadderResults:
    variants = ["default", "a-variant-with-a-rather-long-name"]
    specs = make_specs(MANY_GPUS, variants=variants, modes=["weak", "strong"], device="cuda")
    records = [make_record(s, 2470 * s.world_size * efficiency(s)) for s in specs]
    return LadderResults(make_plan_of(specs), records_by_name(records), {}, ())


def empty() -> LadderResults:
    return LadderResults(make_plan_of(make_specs(["1x1", "1x2", "2x1"])), {}, {}, ())


CASES = {"full": full, "closed": closed, "many": many, "empty": empty}


@pytest.fixture(params=CASES)
def page(request: pytest.FixtureRequest, browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page of each case on a laptop screen; fails on any complaint of the browser."""
    index = write_report(tmp_path, CASES[request.param]())[0]
    opened = browser.new_page(viewport={"width": 1366, "height": 768})
    complaints: list[str] = []
    requests: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda asked: requests.append(asked.url))
    opened.goto(index.as_uri())
    yield opened
    opened.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file://", "data:"))] == []


@pytest.mark.parametrize("width", [1366, 1024])
def test_nothing_is_wider_than_the_screen(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 768})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_plots_are_side_by_side_and_visible(page: Page) -> None:
    boxes = [plot.bounding_box() for plot in page.locator("figure svg").all()]
    if page.locator(".headline.empty").count():
        assert boxes == []
        return
    first, second = boxes
    assert first is not None
    assert second is not None
    for box in (first, second):
        assert box["width"] > 450
        assert box["height"] > 280
    assert abs(first["y"] - second["y"]) < 1
    assert first["x"] + first["width"] <= second["x"]


def test_all_text_is_readable(page: Page) -> None:
    sizes = page.evaluate(
        """() => [...document.querySelectorAll('table *, p, li, dd, dt, figcaption')]
            .filter(e => e.innerText && getComputedStyle(e).display !== 'none')
            .map(e => parseFloat(getComputedStyle(e).fontSize))"""
    )
    assert sizes
    assert min(sizes) >= SMALLEST_TEXT_PX


def test_text_of_the_plots_is_readable_on_a_laptop(page: Page) -> None:
    """As drawn: the size in the picture's own units, scaled to the screen."""
    heights = page.evaluate(
        """() => [...document.querySelectorAll('figure svg text')].map(e =>
            parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getScreenCTM().a)"""
    )
    assert all(height >= SMALLEST_TEXT_PX - 1 for height in heights)


def test_no_text_of_a_table_overlaps_the_next_cell(page: Page) -> None:
    spilt = page.evaluate(
        """() => [...document.querySelectorAll('td, th')]
            .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"""
    )
    assert spilt == []


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


@pytest.mark.parametrize("case", ["full", "closed", "empty"])
def test_prints_on_few_pages(browser: Browser, tmp_path: Path, case: str) -> None:
    index = write_report(tmp_path, CASES[case]())[0]
    opened = browser.new_page()
    opened.goto(index.as_uri())
    pdf = opened.pdf(prefer_css_page_size=True)
    opened.close()
    assert 1 <= pages_of(pdf) <= MOST_PAGES


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_cut_off_in_print(browser: Browser, tmp_path: Path, case: str) -> None:
    """A4 portrait without its margins is 182 mm, 688 CSS pixels, wide."""
    index = write_report(tmp_path, CASES[case]())[0]
    opened = browser.new_page(viewport={"width": 688, "height": 1000})
    opened.emulate_media(media="print")
    opened.goto(index.as_uri())
    width = opened.evaluate("document.documentElement.scrollWidth")
    opened.close()
    assert width <= 688
