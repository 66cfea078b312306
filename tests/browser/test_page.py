"""The report in a real browser: what a reader sees, presses, prints and carries away."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import Page

from programs import need

pytestmark = pytest.mark.browser

Browse = Callable[[Callable[[Page], Any]], Any]
OUTSIDE = re.compile(r"^(?!file:|data:|blob:|about:)")
ALL = ("en", "ko", "compare")

WIDER_THAN_THE_PAGE = """[...document.querySelectorAll('body *')].filter(e => {
  if (e.closest('.scroll, pre, svg, details:not([open]), .skip') || !e.getClientRects().length) return false;
  return e.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
}).map(e => e.tagName + '.' + e.className).slice(0, 5)"""

BROKEN_LINKS = """[...document.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute('href').slice(1))
  .filter(id => !document.getElementById(decodeURIComponent(id)))"""


async def hover(page: Page, selector: str, at: tuple[float, float] = (0.5, 0.5)) -> None:
    box = await page.run(
        f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
        " const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()"
    )
    await page.send(
        "Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + at[0] * box[2], y=box[1] + at[1] * box[3]
    )


async def until(page: Page, condition: str) -> None:
    for _ in range(200):
        if await page.run(condition):
            return
        await page.run("new Promise(r => setTimeout(r, 100))")
    raise AssertionError(f"never true: {condition}")


@pytest.mark.parametrize("name", ALL)
def test_nothing_leaves_the_page_and_the_console_stays_empty(
    browse: Browse, papers: dict[str, Path], name: str
) -> None:
    """Opening, pointing at every figure and changing the theme asks for nothing outside and prints nothing."""

    async def scenario(page: Page) -> None:
        await page.size(1280)
        await page.open(papers[name].as_uri())
        figures = await page.run("[...document.querySelectorAll('figure')].map(f => f.id)")
        assert figures
        for figure in figures:
            await hover(page, f"#{figure} .drawing")
            await until(page, f"!!document.querySelector('#{figure} .vega-embed svg')")
        await page.run("document.querySelector('.theme').click()")
        assert page.console == []
        assert [url for url in page.requests if OUTSIDE.match(url)] == []
        assert await page.run("window.hacked === undefined && document.querySelectorAll('script').length") > 0

    browse(scenario)


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_wider_than_the_page(browse: Browse, papers: dict[str, Path], name: str) -> None:
    """From a phone to a 4K screen the page never scrolls sideways; only tables and code may, inside themselves."""

    async def scenario(page: Page) -> None:
        for width in (390, 768, 1280, 2560, 3840):
            await page.size(width, mobile=width < 500)
            await page.open(papers[name].as_uri())
            await page.run("document.fonts.ready.then(() => 1)")
            assert await page.run(WIDER_THAN_THE_PAGE) == [], width
            assert await page.run("document.documentElement.scrollWidth") <= width

    browse(scenario)


@pytest.mark.parametrize("name", ALL)
def test_every_link_leads_somewhere(browse: Browse, papers: dict[str, Path], name: str) -> None:
    """Links within the page have their target, links to files have their file."""

    async def scenario(page: Page) -> None:
        await page.open(papers[name].as_uri())
        assert await page.run(BROKEN_LINKS) == []
        assert await page.run("document.querySelectorAll('a[href^=\"#\"]').length") > 3
        hrefs = await page.run(
            "[...document.querySelectorAll('a')].map(a => a.getAttribute('href')).filter(h => !/^(#|data:)/.test(h))"
        )
        assert all((papers[name].parent / href).is_file() for href in hrefs), hrefs
        assert any(href.endswith(".svg") for href in hrefs)

    browse(scenario)


def test_figures_and_tables_can_be_carried_away(
    browse: Browse, papers: dict[str, Path], tmp_path: Path
) -> None:
    """SVG, PNG and CSV are one click away even when the page has travelled without its folder."""
    alone = tmp_path / "alone.html"
    alone.write_bytes(papers["en"].read_bytes())

    async def scenario(page: Page) -> None:
        await page.size(1280)
        await page.open(alone.as_uri())
        for kind in ("a[data-as=svg]", "a[data-as=png]", "a[download$='.csv']"):
            await page.run(f"document.querySelector({json.dumps(kind)}).click()")
            for _ in range(100):
                if any(
                    name.endswith(kind[-4:-1].strip("'=]")) or kind[-4:-1] in name for name in page.downloads
                ):
                    break
                await page.run("new Promise(r => setTimeout(r, 100))")
        kinds = {Path(name).suffix for name in page.downloads}
        assert kinds == {".svg", ".png", ".csv"}
        for _ in range(50):
            if len([f for f in tmp_path.iterdir() if f.suffix in kinds]) == 3:
                break
            await page.run("new Promise(r => setTimeout(r, 100))")

    browse(scenario)
    svg = next(tmp_path.glob("*.svg")).read_text(encoding="utf-8")
    assert "var(--" not in svg
    assert "<svg" in svg
    assert next(tmp_path.glob("*.png")).read_bytes().startswith(b"\x89PNG")
    assert "," in next(tmp_path.glob("*.csv")).read_text(encoding="utf-8")


def test_figures_answer_to_the_pointer_without_moving(browse: Browse, papers: dict[str, Path]) -> None:
    """Pointing at a figure makes it interactive in the same place and size, and a mark tells its values."""

    async def scenario(page: Page) -> None:
        await page.size(1280)
        await page.open(papers["en"].as_uri())
        shape = (
            "(() => { const r = document.querySelector('.wide svg').getBoundingClientRect();"
            " return [r.width, r.height]; })()"
        )
        before = await page.run(shape)
        await hover(page, ".drawing")
        await until(page, "!!document.querySelector('.vega-embed svg')")
        after = await page.run(shape)
        assert before == pytest.approx(after, abs=2)
        box = await page.run(
            "(() => { const marks = [...document.querySelectorAll('.vega-embed svg path')].filter("
            "p => p.__data__ && p.__data__.mark && p.__data__.mark.marktype === 'symbol');"
            " const r = marks[0].getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        await page.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        await until(page, "!!document.querySelector('#vg-tooltip-element.visible')")
        assert await page.run("document.querySelector('#vg-tooltip-element').textContent.length") > 10

    browse(scenario)


def test_the_page_reads_without_javascript(browse: Browse, papers: dict[str, Path]) -> None:
    """With scripts off, every figure is a drawing, tables are there, and no dead control is shown."""

    async def scenario(page: Page) -> None:
        await page.send("Emulation.setScriptExecutionDisabled", value=True)
        await page.size(1280)
        await page.open(papers["en"].as_uri())
        await page.send("Emulation.setScriptExecutionDisabled", value=False)
        heights = await page.run(
            "[...document.querySelectorAll('.drawing .wide svg')].map(s => s.getBoundingClientRect().height)"
        )
        assert len(heights) >= 3
        assert min(heights) > 100
        assert await page.run("getComputedStyle(document.querySelector('.theme')).display") == "none"
        assert await page.run("document.querySelectorAll('table tbody tr').length") > 20

    browse(scenario)


@pytest.mark.parametrize("name", ALL)
def test_axe_finds_no_violation(browse: Browse, papers: dict[str, Path], axe: str, name: str) -> None:
    """axe-core finds nothing, in light and dark, wide and narrow, with everything unfolded."""

    async def scenario(page: Page) -> list[Any]:
        found = []
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
            await page.size(width)
            await page.media(scheme)
            await page.open(papers[name].as_uri())
            await page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            await page.run(axe)
            result = await page.run("axe.run(document, {resultTypes: ['violations']})")
            assert len(result["passes"]) > 10
            found += [
                (scheme, v["id"], [n["html"][:160] for n in v["nodes"][:3]]) for v in result["violations"]
            ]
        return found

    assert browse(scenario) == []


def test_the_theme_follows_the_system_and_the_button(browse: Browse, papers: dict[str, Path]) -> None:
    """Dark paper for a dark system; the button overrules it; drawings change with the page."""

    async def scenario(page: Page) -> None:
        paper = "getComputedStyle(document.body).backgroundColor"
        drawn = "getComputedStyle(document.querySelector('.wide svg text')).fill"
        await page.media("light")
        await page.open(papers["en"].as_uri())
        light = await page.run(paper), await page.run(drawn)
        await page.media("dark")
        dark = await page.run(paper), await page.run(drawn)
        assert light[0] != dark[0]
        assert light[1] != dark[1]
        await page.run("document.querySelector('.theme').click()")
        assert (await page.run(paper), await page.run(drawn)) == light
        await page.media("light")
        await page.run("document.querySelector('.theme').click()")
        assert (await page.run(paper), await page.run(drawn)) == dark

    browse(scenario)


def test_the_keyboard_reaches_everything(browse: Browse, papers: dict[str, Path]) -> None:
    """The first tab stop skips to the text, every link and control can be reached, each shows that it is."""

    async def scenario(page: Page) -> None:
        await page.size(1280)
        await page.open(papers["en"].as_uri())
        wanted = await page.run(
            "[...document.querySelectorAll('a[href], button, summary, [tabindex=\"0\"]')]"
            ".filter(e => e.getClientRects().length && !e.closest('details:not([open]) > :not(summary)')).length"
        )
        seen = 0
        for stop in range(wanted + 5):
            for kind in ("keyDown", "keyUp"):
                await page.send(
                    "Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9
                )
            here = await page.run(
                "(() => { const e = document.activeElement; if (e === document.body) return null;"
                " return [e.className, getComputedStyle(e).outlineStyle]; })()"
            )
            if here is None:
                break
            if stop == 0:
                assert here[0] == "skip"
            assert here[1] != "none"
            seen += 1
        assert seen >= wanted

    browse(scenario)


def test_it_prints_to_a4(browse: Browse, papers: dict[str, Path], tmp_path: Path) -> None:
    """The PDF has A4 pages with the whole text and no control, whatever the theme."""

    async def scenario(page: Page) -> None:
        await page.media("dark")
        await page.open(papers["en"].as_uri())
        await page.pdf(tmp_path / "paper.pdf")

    browse(scenario)
    info = subprocess.run(
        [need("pdfinfo", "poppler-utils"), tmp_path / "paper.pdf"], capture_output=True, text=True, check=True
    ).stdout
    assert "(A4)" in info
    assert 3 <= int(re.search(r"Pages:\s+(\d+)", info).group(1)) <= 40
    text = subprocess.run(
        [need("pdftotext", "poppler-utils"), tmp_path / "paper.pdf", "-"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for words in ("Abstract", "Throughput stopped following concurrency", "How to cite"):
        assert words in text
    assert "Theme:" not in text


def test_it_opens_quickly(browse: Browse, papers: dict[str, Path]) -> None:
    """The page is loaded and laid out within a generous bound; the figure itself is printed."""

    async def scenario(page: Page) -> float:
        started = time.monotonic()
        await page.open(papers["en"].as_uri())
        spent = await page.run("performance.getEntriesByType('navigation')[0].duration / 1000")
        sys.stdout.write(f"opened in {spent:.2f} s ({time.monotonic() - started:.2f} s with the protocol)\n")
        return float(spent)

    assert browse(scenario) < 5
