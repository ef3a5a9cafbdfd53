"""The page in a real browser: no error, the run's numbers, read-outs, zoom, sorting,
downloads, dark, phone, print."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colonnade.report.facts import read
from colonnade.report.page import write

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt install chromium"
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason='needs playwright: pip install "colonnade[dev]"'
    )
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(noisy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(noisy, tmp_path_factory.mktemp("page") / "report.html")


class Watched:
    """A page that remembers what went wrong and what it fetched."""

    def __init__(
        self, browser: Any, file: Path, width: int = 1280, **options: Any
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, **options
        )
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.fetched: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.fetched.append(request.url))
        self.page.goto(file.as_uri())

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()
        if error[0] is None:
            assert self.said == []
            assert [
                url
                for url in self.fetched
                if not url.startswith(("file:", "data:", "blob:"))
            ] == []


def test_it_shows_the_runs_numbers_without_an_error(
    browser: Any, file: Path, noisy: Path
) -> None:
    summary = read(noisy).summary
    assert summary is not None
    with Watched(browser, file) as opened:
        shown = opened.page.inner_text("main")
        for value in summary["metrics"]["test"].values():
            assert f"{value:.4f}" in shown
        assert f"{summary['rounds']:,} rounds of exchange" in shown
        assert opened.page.evaluate(
            "[...document.images].every(one => one.naturalWidth > 0)"
        )
        assert opened.page.evaluate(
            "[...document.querySelectorAll('svg.chart')].every(one =>"
            " one.getBBox().width > 100)"
        )


def test_a_pointer_and_arrow_keys_read_values_out(
    browser: Any, file: Path, noisy: Path
) -> None:
    losses = [one["loss"] for one in read(noisy).metrics]
    with Watched(browser, file) as opened:
        chart = opened.page.locator("#figure-loss svg")
        box = opened.page.locator("#readout")
        assert box.is_hidden()
        chart.hover()  # its middle is the second of three epochs
        assert "epoch 2" in box.inner_text()
        assert f"{losses[1]:.4g}" in box.inner_text().replace("\n", " ")
        opened.page.mouse.move(1, 1)
        assert box.is_hidden()
        chart.focus()
        for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"):
            chart.press(key)
        assert "epoch 3" in box.inner_text()
        opened.page.locator("#figure-traffic g.rows .bar").nth(1).hover(force=True)
        assert "clinic received" in box.inner_text()


def test_dragging_zooms_and_a_double_click_undoes_it(browser: Any, file: Path) -> None:
    with Watched(browser, file) as opened:
        chart = opened.page.locator("#figure-progress svg")
        chart.scroll_into_view_if_needed()
        path = chart.locator(".series path").first
        before = path.get_attribute("d")
        ticks = chart.locator(".grid text").all_inner_texts()
        frame = chart.bounding_box()
        middle = frame["y"] + frame["height"] / 2
        opened.page.mouse.move(frame["x"] + 0.5 * frame["width"], middle)
        opened.page.mouse.down()
        opened.page.mouse.move(frame["x"] + 0.99 * frame["width"], middle, steps=5)
        opened.page.mouse.up()
        assert chart.get_attribute("data-zoomed") == "yes"
        assert path.get_attribute("d") != before
        chart.dblclick()
        assert chart.get_attribute("data-zoomed") == ""
        assert chart.locator(".grid text").all_inner_texts() == ticks


def test_the_legend_hides_a_line_and_one_always_stays(browser: Any, file: Path) -> None:
    with Watched(browser, file) as opened:
        chart = opened.page.locator("#figure-loss svg")
        entries = chart.locator(".legend g")
        entries.nth(0).click()
        assert chart.locator(".series.off").count() == 1
        entries.nth(1).press("Enter")  # the last one that is left
        assert chart.locator(".series.off").count() == 1
        entries.nth(0).click()
        assert chart.locator(".series.off").count() == 0


def test_tables_sort_by_value_not_by_letters(browser: Any, file: Path) -> None:
    with Watched(browser, file) as opened:
        table = opened.page.locator("table", has_text="Everything that crossed")
        heading = table.locator("thead button", has_text="bytes")

        def keys() -> list[int]:
            found = table.locator("tbody tr").evaluate_all(
                "rows => rows.map(row => +row.cells[5].dataset.key)"
            )
            return list(found)

        heading.click()
        assert keys() == sorted(keys(), reverse=True)
        heading.click()
        assert keys() == sorted(keys())
        assert table.locator("th[aria-sort=ascending]").inner_text() == "bytes"


def test_figures_are_saved_as_svg_and_png(
    browser: Any, file: Path, tmp_path: Path
) -> None:
    with Watched(browser, file) as opened:
        for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG")):
            with opened.page.expect_download() as download:
                opened.page.locator(f"#figure-loss [data-save={kind}]").click()
            assert download.value.suggested_filename == f"figure-loss.{kind}"
            download.value.save_as(tmp_path / kind)
            assert (tmp_path / kind).read_bytes().startswith(start)
            assert (tmp_path / kind).stat().st_size > 2000


@pytest.mark.parametrize("width", [390, 768, 1600])
def test_no_screen_scrolls_sideways(browser: Any, file: Path, width: int) -> None:
    with Watched(browser, file, width) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.page.locator("svg.chart").first.bounding_box()["width"] > 300


def contrast(one: list[float], other: list[float]) -> float:
    def light(colour: list[float]) -> float:
        parts = [
            (
                c / 255 / 12.92
                if c / 255 <= 0.03928
                else ((c / 255 + 0.055) / 1.055) ** 2.4
            )
            for c in colour
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    bright, dark = sorted((light(one), light(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_colours_can_be_read_on_the_paper(
    browser: Any, file: Path, scheme: str
) -> None:
    read_colours = """names => names.map(name => {
        const probe = document.body.appendChild(document.createElement('i'));
        probe.style.color = `var(${name})`;
        const found = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
        probe.remove();
        return found; })"""
    with Watched(browser, file, color_scheme=scheme) as opened:
        names = [
            "--paper",
            "--ink",
            "--soft",
            "--warn",
            *(f"--s{n}" for n in range(1, 9)),
        ]
        paper, *colours = opened.page.evaluate(read_colours, names)
        assert (max(paper) < 60) == (scheme == "dark")
        for name, colour in zip(names[1:], colours, strict=True):
            assert contrast(paper, colour) >= 4.5, name


def test_it_prints_on_white_with_a_place_to_sign(browser: Any, file: Path) -> None:
    with Watched(browser, file, 794, color_scheme="dark") as opened:
        opened.page.emulate_media(media="print")
        assert (
            opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
            == "rgb(255, 255, 255)"
        )
        assert opened.page.locator("nav").is_hidden()
        assert opened.page.locator(".sign").is_visible()
        assert len(opened.page.pdf(format="A4")) > 20_000


def test_without_javascript_everything_is_there(browser: Any, file: Path) -> None:
    with Watched(browser, file, java_script_enabled=False) as opened:
        assert opened.page.locator("#figure-loss .series path").count() == 2
        assert opened.page.locator(".tools").first.is_hidden()


def test_a_figures_file_is_a_picture_by_itself(
    browser: Any, file: Path, tmp_path: Path
) -> None:
    page = tmp_path / "pictures.html"
    names = sorted((file.parent / "figures").glob("*.svg"))
    page.write_text(
        "<title>x</title>" + "".join(f'<img src="{name.as_uri()}">' for name in names)
    )
    with Watched(browser, page) as opened:
        assert opened.page.evaluate(
            "[...document.images].map(one => one.naturalWidth)"
        ) == [480] * len(names)
