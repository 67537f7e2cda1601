"""The page as a reader sees it: rendered by Chromium, measured, and printed."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from ddp_ladder.gates.gate import Verdict, judge, write_verdict
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.raw_models import Flops
from ddp_ladder.report.page import write_report
from ddp_ladder.report.view import LadderResults, read_results
from make_machine import make_machine
from make_records import make_failed_record, make_gate, make_judged, make_record, make_specs, repeated
from make_results import make_results
from make_runs import write_ladder, write_run
from make_sampled_runs import sample_nodes
from needed import need
from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
QUIET = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
MOST_PAGES = 7  # of several variants; one of them is definitions and methods
SMALLEST_TEXT_PX = 11
MANY_GPUS = ["1x1", "1x2", "1x4", "2x1", "2x4", "4x4", "8x4"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need(CHROMIUM.exists(), f"{CHROMIUM} is missing: nobody looks at the report")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()


def efficiency(spec: RunSpec) -> float:
    return 1.0 if spec.world_size == 1 else 0.95 - 0.01 * spec.world_size


def full(results: Path) -> LadderResults:
    plan = write_ladder(results)
    for stage in plan.stages:
        write_verdict(judge(plan, stage, results), results / "gates")
    return read_results(results, plan)


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
    return make_results(records, specs, gates=gates, warnings=warnings)


def many() -> LadderResults:
    variants = ["default", "a-variant-with-a-rather-long-name"]
    specs = make_specs(MANY_GPUS, variants=variants, modes=["weak", "strong"], device="cuda")
    records = [make_record(s, 2470 * s.world_size * efficiency(s)) for s in specs]
    machines = {scale: [make_machine(scale, driver=f"5{k}.0")] for k, scale in enumerate(MANY_GPUS)}
    return make_results(records, machines=machines)


def sampled(results: Path) -> LadderResults:
    """Runs whose nodes were sampled; their files are below ``results``."""
    specs = make_specs(["1x1", "1x4", "4x4"], repeats=2, device="cuda")
    records = []
    for spec in specs:
        run = write_run(results, spec, samples_per_s=spec.global_batch * 60 / 120)
        records.append(sample_nodes(run, spec.gpus_per_node))
    return make_results(records)


def in_repeats() -> LadderResults:
    """Several repeats, whose table is longer than what the page before it leaves free; the widest table of scales."""
    specs = make_specs(["1x1", "1x4", "4x4"], repeats=4, device="cpu")
    flops = Flops(forward=20e9, backward=40e9, precisions={"fp32": 1.0}, steps=3)
    records = [
        make_record(s, repeated(2470 * s.world_size, s), exposed_comm_fraction=0.1).replace(flops=flops) for s in specs
    ]
    doubtful = {**make_judged("1x4"), "uncertain": True}
    gates = {"stage2": Verdict.from_json(make_gate("stage2", judged=[doubtful]))}
    return make_results(records, gates=gates)


CASES: dict[str, Callable[[Path], LadderResults]] = {
    "full": full,
    "closed": lambda _: closed(),
    "many": lambda _: many(),
    "empty": lambda _: make_results([], make_specs(["1x1", "1x2", "2x1"])),
    "sampled": sampled,
    "in_repeats": lambda _: in_repeats(),
}


@pytest.fixture(scope="module")
def index_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the page of a case, written once."""

    @cache
    def index(case: str) -> Path:
        results = tmp_path_factory.mktemp(case)
        return write_report(replace(CASES[case](results), directory=results)).files[0]

    return index


@pytest.fixture(params=CASES)
def page(request: pytest.FixtureRequest, browser: Browser, index_of: Callable[[str], Path]) -> Iterator[Page]:
    """The page of each case on a laptop screen; fails on any complaint of the browser."""
    index = index_of(request.param)
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


OVERFULL = """() => [...document.querySelectorAll('td, th')]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"""
SIZES = """() => [...document.querySelectorAll('table *, p, li, dd, dt, figcaption')]
    .filter(e => e.innerText && getComputedStyle(e).display !== 'none')
    .map(e => parseFloat(getComputedStyle(e).fontSize))"""
BROKEN = """() => [...document.querySelectorAll('.fields tbody th, .gates tbody th')].filter(e => {
    const range = document.createRange();
    range.selectNodeContents(e);
    return new Set([...range.getClientRects()].map(r => r.top)).size > 1;
}).map(e => e.innerText)"""
HIDDEN_AT_THE_RIGHT = """() => [...document.querySelectorAll('.wide:has(> .scales)')]
    .map(e => e.scrollWidth - e.clientWidth).filter(width => width > 0)"""
LUMINANCE = """e => {
    const [r, g, b] = getComputedStyle(e).backgroundColor.match(/[0-9.]+/g).map(v => (v / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}"""


def boxes(page: Page, pictures: str) -> list[FloatRect]:
    return [box for picture in page.locator(f"{pictures} img").all() if (box := picture.bounding_box())]


def width_of(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def test_the_page_fits_the_screen_and_can_be_read(page: Page) -> None:
    """On a laptop, a small window and a phone: no text over another, none too small, plots in sight."""
    assert page.evaluate(OVERFULL) == []
    assert min(page.evaluate(SIZES)) >= SMALLEST_TEXT_PX
    is_empty = page.locator(".headline.empty").count() > 0
    plots = boxes(page, ".plots")
    assert len(plots) == (0 if is_empty else 2)
    if plots:
        first, second = plots
        assert all(box["width"] > 450 and box["height"] > 280 for box in plots)
        assert abs(first["y"] - second["y"]) < 1
        assert first["x"] + first["width"] <= second["x"]
    for width, beside in ((1366, 3), (1101, 3), (1009, 2), (390, 1)):
        page.set_viewport_size({"width": width, "height": 768})
        assert width_of(page) <= width
        assert width < 1000 or page.evaluate(HIDDEN_AT_THE_RIGHT) == []
        used = boxes(page, ".usage-plots")  # the first repeat of each of three scales
        assert len({round(box["x"]) for box in used}) == (beside if used else 0)
        assert all(box["width"] > 300 and box["height"] > 400 for box in used)
    assert page.evaluate(BROKEN) == []
    for box in boxes(page, ".plots"):  # 9 points of its 5 inches are then 8 pixels
        assert box["width"] > 330
        assert 0 <= box["x"] <= 390 - box["width"]


def empty_below(pdf: bytes) -> list[float]:
    """Return which part of each page is white below its last line."""
    pages = subprocess.run(["pdftoppm", "-r", "20", "-gray", "-"], input=pdf, capture_output=True, check=True).stdout
    parts = []
    while pages:
        _, size, _, rest = pages.split(b"\n", 3)  # P5, width and height, 255, pixels
        width, height = map(int, size.split())
        dark = [row for row in range(height) if min(rest[row * width : (row + 1) * width]) < 245]
        parts.append(1 - (max(dark, default=-1) + 1) / height)
        pages = rest[width * height :]
    return parts


def test_it_is_printed_whole_on_white_paper(browser: Browser, index_of: Callable[[str], Path]) -> None:
    """A4 portrait without its margins is 182 mm, 688 CSS pixels, wide. No page but the last is half empty."""
    need(shutil.which("pdftoppm") is not None, "pdftoppm is missing: nobody looks at the printed pages")
    for case in CASES:
        opened = browser.new_page(viewport={"width": 688, "height": 1000})
        opened.emulate_media(media="print", color_scheme="dark")
        opened.goto(index_of(case).as_uri())
        papers = opened.evaluate("[document.body, ...document.querySelectorAll('.headline')].map(" + LUMINANCE + ")")
        width, pdf = width_of(opened), opened.pdf(prefer_css_page_size=True)
        opened.close()
        assert width <= 688
        assert min(papers) > 0.85  # a dark screen prints on white
        assert max(empty_below(pdf)[:-1]) < 0.5, case
        if case in ("full", "closed", "empty"):
            assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= MOST_PAGES


def test_a_table_is_sorted_with_the_keyboard(browser: Browser, index_of: Callable[[str], Path]) -> None:
    opened = browser.new_page()
    opened.goto(index_of("full").as_uri())
    table = opened.locator("table.scales")
    heading = table.locator("th.samples_per_s")

    def rows() -> list[str]:
        return [text.split()[0][:3] for text in table.locator("tbody th").all_inner_texts()]

    assert rows() == ["1x1", "1x2", "2x1"]  # as climbed
    assert heading.get_attribute("aria-sort") is None
    for expected in ("ascending", "descending"):
        heading.get_by_role("button").press("Enter")
        assert heading.get_attribute("aria-sort") == expected
    assert rows()[-1] == "1x1"
    table.get_by_role("button", name="scale", exact=True).press("Enter")
    assert rows() == ["1x1", "1x2", "2x1"]
    assert heading.get_attribute("aria-sort") is None
    opened.close()
