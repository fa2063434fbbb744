"""The morning page in a real browser: nothing is asked for, nothing complains, nothing overlaps or is cut off."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PROGRAM, Browser, browser

from overnight.report.page import page
from report_values import bare, blank, failed, hostile, rich

if PROGRAM is None:
    pytest.skip("chromium is not here (Debian package chromium)", allow_module_level=True)

VALUES = {"rich": rich, "failed": failed, "bare": bare, "blank": blank, "hostile": lambda: hostile(rich())}
WIDTHS = (380, 1280)

BOXES = """
(() => {
  const found = [];
  for (const svg of document.querySelectorAll(".plot > svg, .strip > svg")) {
    const frame = svg.parentNode.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll("text")].filter(one => one.getClientRects().length && one.textContent)
      .map(one => [one.textContent, one.getBoundingClientRect()]);
    for (const [said, box] of boxes) {
      if (box.left < frame.left - 0.5 || box.right > frame.right + 0.5 || box.top < frame.top - 0.5 ||
          box.bottom > frame.bottom + 0.5) found.push("out: " + said);
      for (const [other, beside] of boxes)
        if (beside !== box && box.left < beside.right && beside.left < box.right && box.top + 1 < beside.bottom &&
            beside.top + 1 < box.bottom) found.push("over: " + said + " and " + other);
    }
    if (!boxes.length) found.push("no label at all");
  }
  return found;
})()
"""

OUTSIDE = """
[...document.querySelectorAll("body *")].filter(one => !one.closest("pre") && !one.closest("details:not([open])"))
  .filter(one => one.getBoundingClientRect().width > 0)
  .filter(one => one.getBoundingClientRect().right > innerWidth + 0.5 || one.getBoundingClientRect().left < -0.5)
  .map(one => one.tagName + "." + one.getAttribute("class"))
"""

CONTRAST = """
(() => {
  const paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = colour => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data]; };
  const light = parts => { const [r, g, b] = parts.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = one => { for (; one; one = one.parentElement) {
    const parts = rgb(getComputedStyle(one).backgroundColor); if (parts[3] === 255) return parts; }
    return [255, 255, 255, 255]; };
  let least = [99, ""], count = 0;
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !one.getClientRects().length || ["SCRIPT", "title", "desc"].includes(one.tagName)) continue;
    const style = getComputedStyle(one);
    const a = light(rgb(one instanceof SVGElement ? style.fill : style.color)), b = light(behind(one));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    count += 1;
    if (ratio < least[0]) least = [ratio, one.tagName + " " + one.textContent.slice(0, 40)];
  }
  return [count, ...least];
})()
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in VALUES.items():
        (folder / f"{name}.html").write_text(page(make()), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in VALUES}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VALUES)
def test_a_page_is_calm_and_fits(
    chromium: Browser, pages: dict[str, Path], name: str, width: int, *, dark: bool
) -> None:
    chromium.shape(width, dark=dark)
    chromium.open(pages[name].as_uri())
    assert chromium.complaints() == []
    assert chromium.requests() == [pages[name].as_uri()]
    assert chromium.eval("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    chromium.eval("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert chromium.eval("document.documentElement.scrollWidth") == width
    assert chromium.eval(OUTSIDE) == []
    assert chromium.eval(BOXES) == []
    assert chromium.eval("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    count, least, where = chromium.eval(CONTRAST)
    assert count > 10
    assert least >= 4.5, where


def test_the_browser_would_notice(chromium: Browser, tmp_path: Path) -> None:
    """What the test above looks for is seen when it is there."""
    bad = page(rich()).replace("<h1>", '<h1 style="width:3000px"><img src="http://127.0.0.1:9/x.png">', 1)
    bad = bad.replace("</main>", '<script>console.log("run")</script><p style="color:#999">pale</p></main>', 1)
    bad = bad.replace('class="tick middle">', 'class="tick middle" dx="-40" textLength="300">')
    (tmp_path / "bad.html").write_text(bad, encoding="utf-8")
    chromium.shape(1280)
    chromium.open((tmp_path / "bad.html").as_uri())
    said = " ".join(chromium.complaints())
    assert "violates the following Content Security Policy directive" in said
    assert '"run"' not in said
    assert chromium.eval("document.documentElement.scrollWidth") > 1280
    assert "H1.null" in chromium.eval(OUTSIDE)
    assert any(one.startswith("over: ") for one in chromium.eval(BOXES))
    assert chromium.eval(CONTRAST)[1] < 4.5


def test_hostile_text_is_inert(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.shape(1280)
    chromium.open(pages["hostile"].as_uri())
    assert "<script>alert(1)</script>" in chromium.eval("document.querySelector('h1').textContent")
    assert "<script>alert(1)</script>" in chromium.eval("document.title")
    assert chromium.eval("[document.scripts.length, document.images.length]") == [1, 0]
    assert not [one for one in chromium.events if one["method"] == "Page.javascriptDialogOpening"]


def test_title_language_and_landmarks(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.shape(1280)
    chromium.open(pages["rich"].as_uri())
    assert chromium.eval("document.title") == "pretrain: finished (completed) · Overnight"
    assert chromium.eval("document.documentElement.lang") == "en"
    tree = chromium.ask("Accessibility.getFullAXTree")["nodes"]
    named = {(one["role"]["value"], one.get("name", {}).get("value")) for one in tree if not one["ignored"]}
    assert ("heading", "pretrain") in named
    assert ("main", "") in named
    assert ("columnheader", "Attempt") in named
    assert {("region", "Curves"), ("region", "What happened")} <= named
    pictures = {name for role, name in named if role in ("image", "img")}
    assert any(name and name.startswith("Loss") for name in pictures)
    assert any(name and name.startswith("Where the time went") for name in pictures)


def test_the_pointer_and_the_arrow_keys_read_values(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.shape(1280)
    chromium.open(pages["failed"].as_uri())
    readout = "document.querySelector('.readout').textContent"
    before = chromium.eval(readout)
    where = "document.querySelector('.plot > svg').getBoundingClientRect()"
    chromium.eval("document.querySelector('.plot').scrollIntoView()")
    box = chromium.eval(f"(box => [box.left, box.top, box.width, box.height])({where})")

    def point(share: float, down: float) -> Any:
        x, y = box[0] + box[2] * share, box[1] + box[3] * down
        chromium.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return chromium.eval(f"new Promise(done => requestAnimationFrame(() => done({readout})))")

    assert point(0.27, 0.5) == "step 3: 9.7 · attempt 1"
    assert point(0.99, 0.5) == "step 12: 8.1 · attempt 3"
    assert point(0.5, -2) == before
    chromium.eval("document.querySelector('.plot').focus()")
    for key, said in (("Home", "step 0: 10.98"), ("ArrowRight", "step 3: 9.7"), ("End", "step 12: 8.1")):
        chromium.ask("Input.dispatchKeyEvent", type="keyDown", key=key)
        assert chromium.eval(readout).startswith(said)
    chromium.ask("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert chromium.eval(readout) == before


def test_the_page_is_whole_without_its_script(chromium: Browser, pages: dict[str, Path]) -> None:
    texts = []
    for scripts in (True, False):
        chromium.shape(1280, scripts=scripts)
        chromium.open(pages["rich"].as_uri())
        tree = chromium.ask("DOM.getDocument", depth=-1)["root"]
        body = next(one for one in tree["children"][1]["children"] if one["nodeName"] == "BODY")
        texts.append(words(body))
    chromium.shape(1280)
    assert texts[0] == texts[1]
    assert "What happened" in texts[0]


def words(node: dict[str, Any]) -> str:
    if node["nodeName"] == "SCRIPT":
        return ""
    return node.get("nodeValue", "") + "".join(words(one) for one in node.get("children", ()))


def test_paper_shows_what_is_folded_and_is_light(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.shape(1280, dark=True)
    chromium.open(pages["rich"].as_uri())
    chromium.ask("Emulation.setEmulatedMedia", media="print", features=[])
    folded = "document.querySelector('details pre').getBoundingClientRect().height"
    assert chromium.eval(folded) > 20
    assert chromium.eval("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert chromium.eval("document.documentElement.scrollWidth") <= 1280
    paper = chromium.paper()
    assert paper.startswith(b"%PDF")
    assert len(paper) > 20_000


class Counting(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and keeps what it was asked for."""

    asked: list[str]

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()


def test_a_server_is_asked_for_the_page_only(chromium: Browser, pages: dict[str, Path]) -> None:
    """Not even for a favicon, which no event of the browser tells of."""
    Counting.asked = []
    serve = functools.partial(Counting, directory=os.fspath(pages["rich"].parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            chromium.shape(1280)
            chromium.open(f"http://127.0.0.1:{server.server_address[1]}/rich.html")
            chromium.open("about:blank")
        finally:
            server.shutdown()
            thread.join()
    assert Counting.asked == ["/rich.html"]
