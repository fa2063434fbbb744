"""The morning page as text: nothing that was read becomes markup, nothing is asked of anybody, it stays small."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import random
import re
from fractions import Fraction
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.report.bars import clock_axis, slices
from overnight.report.charts import NARROW_PX, WIDE_PX, chart
from overnight.report.curves import clusters, marks_of, stretches, thinned
from overnight.report.markup import each, el, escaped, shown, unbroken
from overnight.report.page import LARGEST_BYTES, page, tone
from overnight.report.scales import SIGN_PX, axis, fits, labels, round_end, round_ticks, span_axis
from overnight.report.units import duration, number, percent, size
from report_values import HOSTILE, bare, blank, failed, hostile, rich

VALUES = {"rich": rich, "failed": failed, "bare": bare, "blank": blank, "hostile": lambda: hostile(rich())}
VOID = {"meta", "link", "br", "hr"}
FINITE = st.floats(allow_nan=False, allow_infinity=False)


class Reading(HTMLParser):
    """What a browser would see: the elements, and the text outside of style and script."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.raw = {"style": "", "script": ""}
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]] += data
        else:
            self.text += data


def one_chart(**more: Any) -> dict[str, Any]:
    plain = {"name": "loss", "label": "Loss", "unit": "", "x_label": "step", "older": [], "nonfinite": [], "marks": []}
    given_x = more.get("x", [])
    return {**plain, "low": given_x, "high": given_x, "attempts": [1] * len(given_x), **more}


def test_one_odd_step_far_ahead_takes_no_width_from_what_counts() -> None:
    """F3-04: 607,500 was printed once and gone back from. A long superseded part is drawn, wherever it lies."""
    x = [float(step) for step in range(583_600, 584_000, 10)]
    odd = {"attempt": 1, "x": [607_500.0], "low": [2.5], "high": [2.5]}
    drawn = str(chart(one_chart(x=x, low=[2.5] * 40, high=[2.5] * 40, older=[odd]), "c"))
    assert float(re.findall(r'data-to="([^"]+)"', drawn)[0]) <= 584_000
    assert "one value at step 607,500, far beyond: not drawn" in drawn
    assert "redone later" not in drawn
    ahead = [600_000.0, 601_000.0, 602_000.0]
    long = {"attempt": 1, "x": ahead, "low": [2.5] * 3, "high": [2.6] * 3}
    drawn = str(chart(one_chart(x=x, low=[2.5] * 40, high=[2.5] * 40, older=[odd, long]), "c"))
    assert float(re.findall(r'data-to="([^"]+)"', drawn)[0]) >= 602_000
    assert "attempt 1: redone later" in drawn
    near = {**odd, "x": [584_100.0]}
    assert "far beyond" not in str(chart(one_chart(x=x, low=[2.5] * 40, high=[2.5] * 40, older=[near]), "c"))


def test_nothing_happened_is_not_said_of_what_was_not_read_or_not_judged() -> None:
    quiet = {**bare(), "timeline": []}
    said = {}
    for records in (0, 40):
        seen = Reading(page({**quiet, "progress": {**quiet["progress"], "records": records}}))
        said[records] = " ".join(seen.text.split())
    assert "Nothing is known of what happened between the first line and the last." in said[0]
    assert "No rule found anything in its lines. overnight replay judges silences, too." in said[40]


def test_a_heading_read_aloud_has_its_unit_apart_and_once() -> None:
    for label, unit, said in (("Step time", "s", "Step time s"), ("tokens/s", "tokens/s", "Tokens/s")):
        drawn = str(chart(one_chart(x=[1.0, 2.0], label=label, unit=unit), "c"))
        (heading,) = re.findall("<h3>(.*?)</h3>", drawn)
        assert re.sub("<[^>]*>", "", heading) == said


def test_what_hardly_changes_looks_so_where_a_loss_would_be_drawn_large() -> None:
    x, values = [5.08971, 14.08971], [22.70288, 22.70227]
    over_time = one_chart(name="memory", x=x, low=values, high=values, x_label="second", zero=1.8e9, x_s=1.0)
    drawn = str(chart(over_time, "c"))
    assert "least 22.702 at second 14.09" in drawn
    ys = [int(y) for y in re.findall(r"\d+ (\d+)", re.findall(r'd="M([^"h]+)" class="line"', drawn)[0])]
    assert abs(ys[0] - ys[1]) < 100  # of 1,000
    loss = str(chart(one_chart(x=[1.0, 2.0], low=values, high=values), "c"))
    ys = [int(y) for y in re.findall(r"\d+ (\d+)", re.findall(r'd="M([^"h]+)" class="line"', loss)[0])]
    assert abs(ys[0] - ys[1]) > 800


# -- the whole page --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VALUES)
def test_a_page_is_well_formed_and_closed(name: str) -> None:
    source = page(VALUES[name]())
    seen = Reading(source)
    assert not seen.open
    assert source.startswith('<!DOCTYPE html>\n<html lang="en"')
    assert [tag for tag, _ in seen.tags].count("h1") == 1
    ids = [attrs["id"] for _, attrs in seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs in seen.tags:
        assert all(one in ids for one in (attrs.get("aria-labelledby") or "").split())


@pytest.mark.parametrize("name", VALUES)
def test_headings_come_in_order(name: str) -> None:
    levels = [int(tag[1]) for tag, _ in Reading(page(VALUES[name]())).tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def drawings(source: str) -> list[str]:
    """Return the outermost SVG elements of a page."""
    found, depth, begin = [], 0, 0
    for one in re.finditer(r"<(/?)svg\b", source):
        depth += -1 if one[1] else 1
        if depth == 1 and not one[1]:
            begin = one.start()
        elif depth == 0:
            found.append(source[begin : one.end() + 1])
    return found


@pytest.mark.parametrize("name", VALUES)
def test_svg_is_well_formed_xml_and_told_to_who_cannot_see_it(name: str) -> None:
    pictures = drawings(page(VALUES[name]()))
    for picture in pictures:
        top = ET.fromstring(picture)
        if top.get("aria-hidden") != "true":
            assert top.get("role") == "img"
            assert top.findtext("title")
            assert top.findtext("desc")
    assert len(pictures) > 5 or name in ("bare", "blank")


def test_nothing_is_loaded_from_anywhere() -> None:
    for name, make in VALUES.items():
        seen = Reading(page(make()))
        for tag, attrs in seen.tags:
            assert tag not in (
                "img",
                "iframe",
                "object",
                "embed",
                "base",
                "form",
                "a",
                "use",
                "image",
                "video",
                "audio",
            )
            assert "src" not in attrs, name
            assert "style" not in attrs
            assert not any(key.startswith("on") for key in attrs), (name, tag, attrs)
            assert attrs.get("href") in (None, "data:,")
        assert not re.search(r"url\(|@import|https?:|//", seen.raw["style"])
        assert not re.search(r"fetch|XMLHttp|import\(|https?:|//|eval|innerHTML", seen.raw["script"])
    assert not re.search(r"https?://", page(rich()))


def test_the_policy_allows_this_script_and_nothing_else() -> None:
    seen = Reading(page(rich()))
    policy = next(attrs["content"] for tag, attrs in seen.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(seen.raw["script"].encode()).digest()).decode()
    assert policy is not None
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert [tag for tag, _ in seen.tags].count("script") == 1


def paths_of_texts(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [found for key, one in value.items() for found in paths_of_texts(one, (*path, key))]
    if isinstance(value, list):
        return [found for at, one in enumerate(value[:2]) for found in paths_of_texts(one, (*path, at))]
    return [path] if isinstance(value, str) or value is None else []


@pytest.mark.parametrize("text", [HOSTILE, "<script>alert(1)</script>", "</title></style></svg><svg onload=alert(1)>"])
def test_every_text_of_the_value_is_text(text: str) -> None:
    whole = Reading(page(hostile(rich(), text)))
    tags = {tag for tag, _ in Reading(page(rich())).tags}
    assert {tag for tag, _ in whole.tags} <= tags
    assert [tag for tag, _ in whole.tags].count("script") == 1
    assert shown(text, 40)[:20] in whole.text


@pytest.mark.parametrize("path", paths_of_texts(rich()), ids=str)
def test_each_text_alone_is_text(path: tuple[Any, ...]) -> None:
    """Also where the value says null: somebody else's text may come there another time."""
    value: Any = rich()
    value["charts"] = value["charts"][:1] if path[0] != "charts" else value["charts"]
    for one in value["charts"]:
        for key in ("x", "low", "high", "attempts"):
            one[key] = one[key][:5]
    place = value
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = "<script>alert(1)</script><b data-x='1' onclick=\"2\">"
    seen = Reading(page(value))
    assert [tag for tag, _ in seen.tags].count("script") == 1
    assert "b" not in {tag for tag, _ in seen.tags}
    assert not any("onclick" in attrs for _, attrs in seen.tags)
    assert not seen.open


def test_keys_are_escaped_too() -> None:
    value = rich()
    value["limits"] = {"<script>x</script>": 3}
    value["unknown"] = {"<script>y</script>": "<script>z</script>"}
    assert page(value).count("<script") == 1


def test_what_a_person_asks_first_stands_first() -> None:
    text = Reading(page(rich())).text
    order = [
        "finished (completed)",
        "What to look at next",
        "Key figures",
        "Where the time went",
        "Attempts",
        "What happened",
    ]
    order += ["Curves", "Limits and cost", "Checkpoints", "Evidence", "The last lines", "Command and log"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert "pretrain: finished (completed) · Overnight" in page(rich())
    for said in ("68.1%", "1,203,455", "step 11600 | loss 3.3121", "6N over 312 TFLOP/s", "31.3%", "19,999 of 20,000"):
        assert said in text


def test_unknown_is_said_and_never_zero() -> None:
    text = Reading(page(bare())).text
    assert "Step" in text
    assert text.count("unknown") >= 4
    assert "a --pattern that names the step" in text
    assert "--dt would help" in text
    assert "no limit" not in text
    assert not re.search(r"(?<![\d.,])0(?![\d.,])", text.replace("120 bytes", ""))


@pytest.mark.parametrize(
    ("state", "cause", "expected"),
    [
        ("finished", "completed", "good"),
        ("finished", "bad_teardown", "warned"),
        ("stopped", "user", "plain"),
        ("stopped", "cost", "plain"),
        ("stopped", "nonfinite", "bad"),
        ("stopped", "a-plug-in-s", "bad"),
        ("failed", "crash", "bad"),
        ("gave_up", "crash", "bad"),
        ("running", None, "plain"),
        ("backoff", None, "warned"),
        (None, None, "unclear"),
    ],
)
def test_the_colour_of_an_outcome(state: str | None, cause: str | None, expected: str) -> None:
    assert tone({"state": state, "cause": cause}) == expected


def test_a_failed_hook_is_no_clean_end() -> None:
    assert tone({"state": "finished", "cause": "completed", "code": 108}) == "warned"


# -- size ------------------------------------------------------------------------------------------------------------


def stuffed(sign: str) -> dict[str, Any]:
    """Return a value of everything too much: long lists, long texts that grow when escaped, incompressible charts."""
    value = rich()
    long = sign * 50_000
    chance = random.Random(5)
    for name in ("attempts", "timeline", "checkpoints", "proofs", "figures", "next", "last_lines"):
        value[name] = [hostile(one, long) for one in value[name]] * 400
    for at, one in enumerate(value["attempts"]):
        value["attempts"][at] = {**one, "lines": [long] * 40, "n": at}
    value["command"] = [long] * 500
    value["unknown"] = {f"{sign * 200}{at}": long for at in range(500)}
    value["limits"] = {f"{sign * 200}{at}": long for at in range(500)}
    value["goodput"]["parts"] *= 300
    value["outcome"] = hostile(value["outcome"], long)
    value["progress"]["eval"]["name"] = long
    for key in ("name", "cwd", "host", "engine"):
        value[key] = long
    x = [at + chance.random() for at in range(20_000)]
    low = [-chance.random() * 1e-5 for _ in x]
    drawn = {
        "x": x,
        "low": low,
        "high": [chance.random() * 1e5 for _ in x],
        "attempts": [at // 30 for at in range(len(x))],
        "label": long,
        "unit": long,
        "x_label": long,
        "name": long,
        "older": [{"attempt": at, "x": x[:900], "low": low[:900], "high": x[:900]} for at in range(60)],
        "marks": [{"x": at, "severity": "critical", "text": long} for at in x[::20]],
        "nonfinite": [[at, "nan"] for at in x[::17]],
    }
    value["charts"] = [drawn] * 30
    return value


@pytest.mark.parametrize("sign", ["&", "\N{GRINNING FACE}", "a "])
def test_no_page_is_too_large(sign: str) -> None:
    source = page(stuffed(sign))
    assert len(source.encode()) < LARGEST_BYTES == 3_000_000
    text = Reading(source).text
    for said in ("less important entries left out", "are not drawn", "more characters", "are left out"):
        assert said in text


def test_what_matters_is_kept_of_a_long_night() -> None:
    value = rich()
    notes = [{**value["timeline"][1], "text": f"save {at}"} for at in range(5000)]
    value["timeline"] = [*notes[:2500], *value["timeline"], *notes[2500:]]
    source = page(value)
    text = Reading(source).text
    for said in (
        "loss is NaN at step 14,020",
        "attempt 2 after 40 s",
        "max_hours is 9",
        "save 0",
        "save 4999",
        "saved",
    ):
        assert said in text
    assert "save 2400" not in text
    counts = [int(one.replace(",", "")) for one in re.findall(r">([\d,]+) less important entr", source)]
    assert sum(counts) == 5000 + 11 - 200


# -- markup ----------------------------------------------------------------------------------------------------------


def test_markup_is_made_only_on_purpose() -> None:
    assert escaped("<b>") == "&lt;b&gt;"
    assert el("p", "<b>", el("i", "x"), None, title='"<') == '<p title="&quot;&lt;">&lt;b&gt;<i>x</i></p>'
    assert el("td", "1", data_label="a", class_="n", hidden=None) == '<td data-label="a" class="n">1</td>'
    assert each(["<", el("hr")]) == "&lt;<hr>"
    assert (
        unbroken("a --b <c>")
        == '<span class="word">a</span> <span class="word">--b</span> <span class="word">&lt;c&gt;</span>'
    )


def test_control_characters_do_nothing() -> None:
    assert shown("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x00y") == "red xy"
    assert shown("a\u202eb\x07c\ud800d\re") == "a\ufffdb\ufffdc\ufffdd\ufffde"
    assert shown("one\r\ntwo\tthree\n") == "one\ntwo\tthree\n"
    assert shown("x" * 20, 5) == "xxxxx… (15 more characters)"


@given(st.text())
def test_any_text_can_be_written_and_read_as_xml(text: str) -> None:
    ET.fromstring(el("p", text, title=text).encode("utf-8"))


# -- axes ------------------------------------------------------------------------------------------------------------


@given(FINITE, FINITE, st.integers(1, 12), st.booleans())
def test_ticks_are_round_and_inside(one: float, other: float, most: int, whole: bool) -> None:
    low, high = sorted((one, other))
    ticks = round_ticks(low, high, most, whole=whole)
    assert len(ticks) <= most
    exact = [tick.exact for tick in ticks]
    assert all(Fraction(low) <= tick <= Fraction(high) for tick in exact)
    gaps = {after - before for before, after in itertools.pairwise(exact)}
    assert len(gaps) <= 1
    for gap in gaps:
        assert str(f"{Fraction(gap).limit_denominator(10**400)}").strip("0/")[0] in "125"
    if whole:
        assert all(tick.denominator == 1 for tick in exact)


@given(FINITE, FINITE)
def test_labels_are_short_and_all_different(one: float, other: float) -> None:
    found = axis([one, other])
    assert found is not None
    assert found.low < found.high
    assert len(set(found.labels)) == len(found.labels) == len(found.ticks)
    assert all(len(label) <= 10 for label in found.labels), found.labels
    for value in (one, other):
        assert -1e-9 <= found.place(value) <= 1 + 1e-9


@given(st.floats(-1e15, 1e15), st.floats(0, 1e9), st.sampled_from([WIDE_PX, NARROW_PX]))
def test_labels_along_the_steps_never_touch(low: float, span: float, width_px: float) -> None:
    found = span_axis(low, low + span, width_px)
    assert fits(found, width_px, SIGN_PX)


@pytest.mark.parametrize(
    ("values", "expected", "note"),
    [
        ([0, 10], ["0", "2", "4", "6", "8", "10"], None),
        ([2.5, 11], ["0", "5", "10"], None),
        ([9.2, 9.8], ["9.2", "9.4", "9.6", "9.8"], None),
        ([-3, 3], ["\N{MINUS SIGN}2", "0", "2"], None),
        ([7, 7], ["6.5", "7", "7.5"], None),
        ([0, 0], ["\N{MINUS SIGN}1", "\N{MINUS SIGN}0.5", "0", "0.5", "1"], None),
        ([1.2e5, 1.31e5], ["120k", "125k", "130k"], None),
        ([0, 2.4e12], ["0", "0.5T", "1T", "1.5T", "2T", "2.5T"], None),
        ([1e12, 1e12 + 4], ["0", "+1", "+2", "+3", "+4"], "counted from 1,000,000,000,000"),
        ([0.00001, 0.00003], ["1e-5", "1.5e-5", "2e-5", "2.5e-5", "3e-5"], None),
        ([0.1, 250], ["0.1", "1", "10", "100"], "logarithmic scale"),
        ([1e-9, 1e9], ["1e-9", "1e-5", "0.1", "1,000", "10M"], "logarithmic scale"),
        ([math.nan, math.inf, 5], ["4.6", "4.8", "5", "5.2", "5.4"], None),
    ],
)
def test_axes_of_known_ranges(values: list[float], expected: list[str], note: str | None) -> None:
    found = axis(values, 6 if "1.5T" in expected or "2" in expected or "1.5e-5" in expected else 5)
    assert found is not None
    assert (list(found.labels), found.note) == (expected, note)


def test_an_axis_of_nothing_is_none() -> None:
    assert axis([]) is None
    assert axis([math.nan, math.inf]) is None
    assert round_ticks(1, 1, 5) == round_ticks(2, 1, 5) == round_ticks(0, math.inf, 5) == []
    assert labels([]) == ([], None)


def test_an_axis_ends_at_a_round_number_that_is_near() -> None:
    assert round_end(0, 19_984) == 20_000
    assert round_end(0, 15_300) == 15_300
    assert round_end(3, 3) == 3


def test_clock_ticks_are_full_hours_and_say_the_day() -> None:
    found = clock_axis(1_795_900_000, 1_795_900_000 + 9 * 3600, WIDE_PX)
    assert fits(found, WIDE_PX, SIGN_PX)
    assert all(tick % 3600 == 0 for tick in found.ticks)
    assert 4 <= len(found.ticks) <= 10
    assert any(re.fullmatch(r"[A-Z][a-z]{2} \d\d", label) for label in found.labels)


# -- curves ----------------------------------------------------------------------------------------------------------


def xs(pieces: list[Any]) -> list[list[float]]:
    return [[part.x for part in piece] for piece in pieces]


def test_lines_break_where_nothing_is_known() -> None:
    steps = [0, 1, 2, 3, 4, 50, 51, 52]
    assert xs(stretches(one_chart(x=steps))) == [[0, 1, 2, 3, 4], [50, 51, 52]]
    assert xs(stretches(one_chart(x=[0, 1, 2, 3], attempts=[1, 1, 2, 2]))) == [[0, 1], [2, 3]]
    assert xs(stretches(one_chart(x=[0, 1, 2, 3], low=[1, None, 1, "nan"], high=[1, None, 1, "nan"]))) == [[0], [2]]
    assert xs(stretches(one_chart(x=[0, 1, 2, 3]), broken_at=[1.5])) == [[0, 1], [2, 3]]


def test_a_log_that_grows_rarer_has_no_holes() -> None:
    assert len(stretches(one_chart(x=[1, 2, 4, 8, 16, 32, 64, 128, 1000, 2000, 3000]))) == 1
    assert len(stretches(one_chart(x=[1, 500, 1000, 1500]))) == 1
    assert len(stretches(one_chart(x=[1, 900]))) == 1


def test_thinning_keeps_both_extremes() -> None:
    low = [1.0] * 9000
    low[4321], high = -7.0, [2.0] * 9000
    high[777] = 99.0
    thin = thinned(stretches(one_chart(x=list(range(9000)), low=low, high=high)))
    parts = [part for piece in thin for part in piece]
    assert len(parts) <= 2000
    assert (min(part.low for part in parts), max(part.high for part in parts)) == (-7.0, 99.0)


def test_thinning_of_loose_parts_keeps_both_extremes_too() -> None:
    low = [1.0 if at % 2 else None for at in range(9000)]
    low[4321] = -7.0
    parts = [part for piece in thinned(stretches(one_chart(x=list(range(9000)), low=low, high=low))) for part in piece]
    assert len(parts) <= 2000
    assert min(part.low for part in parts) == -7.0


def test_marks_come_from_verdicts_attempts_and_nan() -> None:
    one = one_chart(
        x=[0, 1, 2, 3],
        attempts=[1, 1, 2, 2],
        marks=[{"x": 3, "severity": "warn", "text": "odd"}, {"x": None, "severity": "warn", "text": "nowhere"}],
        nonfinite=[[1, "nan"], ["nan", "nan"]],
    )
    found = marks_of(one)
    assert [(mark.x, mark.kind) for mark in found] == [(1, "nan"), (2, "restart"), (3, "warn")]
    assert found[0].text == "Loss is NaN"
    assert found[1].text == "attempt 2 from here"


def test_marks_that_stand_close_are_one_sign_with_a_count() -> None:
    one = one_chart(x=[0, 1000], nonfinite=[[at, "nan"] for at in range(500, 540)])
    grouped = clusters(marks_of(one), span_axis(0, 1000, WIDE_PX))
    assert [len(cluster.marks) for cluster in grouped] == [40]
    assert "40 times: NaN or infinite" in chart(one, "c")


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([5], [3.0]),
        ([1, 2], [1.0, 1.0]),
        ([1, 2], ["nan", "nan"]),
        ([1, 2], [None, None]),
        ([1, 2, 3], [1e12, 1e12 + 1, 1e12 + 2]),
        ([1, 2, 3], [-1e308, 0.0, 1e308]),
        ([1, 2, 3], [5e-324, 1e-300, 1.0]),
        ([1, 2, 3], [1.0, math.nextafter(1.0, 2), 1.0]),
        ([-1e300, 1e300], [1.0, 2.0]),
        ([1e15, 1e15 + 1], [1.0, 2.0]),
        (["nan", None], [1.0, 2.0]),
        ([3, 1, 2], [1.0, 2.0, 3.0]),
        ([0.25, 0.5, 1.75], [1.0, 2.0, 3.0]),
    ],
)
def test_any_series_can_be_drawn(x: list[Any], y: list[Any]) -> None:
    drawn = chart(one_chart(x=x, low=y, high=y), "c")
    ET.fromstring(drawn)
    assert not re.search(r"\bnan\b|\binf\b", re.sub(r"<(title|desc)\b.*?</\1>", "", drawn))


def test_older_attempts_are_drawn_apart_and_named() -> None:
    drawn = ET.fromstring(chart(rich()["charts"][0], "c"))
    older = [one for one in drawn.iter("g") if one.get("class") == "older"]
    assert len(older) == 2
    assert older[0].findtext("title") == "attempt 1, redone later"
    assert older[0].find("path[@class='line']") is not None
    assert "attempts 1, 2: redone later" in "".join(drawn.itertext())


# -- bars and units --------------------------------------------------------------------------------------------------


def test_what_was_overtaken_is_drawn_below_what_counts() -> None:
    old = {"attempt": 1, "x": [2, 3], "low": [3.0, 2.0], "high": [3.0, 2.0]}
    drawn = str(chart(one_chart(x=[1, 2, 3, 4], older=[old]), "c"))
    assert drawn.index('class="older"') < drawn.index('class="newest"')
    assert 'class="swatch older"' in drawn
    assert "dots" not in drawn[drawn.index('class="older"') : drawn.index('class="newest"')]  # a dashed line, as told


def test_the_legend_shows_dots_for_what_is_drawn_as_dots() -> None:
    old = {"attempt": 1, "x": [2], "low": [3.0], "high": [3.0]}
    drawn = str(chart(one_chart(x=[1, 2, 3, 4], older=[old]), "c"))
    assert 'class="swatch older dotted"' in drawn
    assert 'class="swatch newest"' in drawn
    older = drawn[drawn.index('class="older"') : drawn.index('class="newest"')]
    assert 'class="dots"' in older
    assert 'class="line"' not in older


def test_arrows_stay_whole_and_small_amounts_have_digits() -> None:
    value = {**bare(), "next": ["it fell (2.5 -> 2.1) and `a -> b` ran"]}
    assert '(2.5 <span class="word">-&gt;</span> 2.1)' in page(value)
    value = rich()
    value["cost"]["price"] = 0.00166
    value["goodput"]["lost_cost"] = 0.00166
    shown_text = Reading(page(value)).text
    assert "worth 0.00166" in shown_text
    assert "0.00166 (from" in shown_text


def test_least_and_last_are_those_of_the_run_and_not_of_a_part() -> None:
    exact = one_chart(x=[50, 100], low=[1.0, 0.5], high=[2.0, 0.9], least=0.5, least_x=133, last=0.7)
    assert "least 0.5 at step 133 · last 0.7<" in str(chart(exact, "c"))
    sick = {**exact, "nonfinite": [[140, "nan"]]}
    assert "least 0.5 at step 133 · last NaN<" in str(chart(sick, "c"))
    assert "least 0.5 at step 100 · last 0.5 to 0.9" in str(chart({**exact, "least": None}, "c"))


def test_a_mark_is_told_in_words_once() -> None:
    mark = {"x": 2, "severity": "critical", "text": "loss is NaN at step 2"}
    value = {**bare(), "charts": [one_chart(x=[1, 2, 3], name=name, marks=[mark]) for name in ("loss", "lr", "dt_s")]}
    value["charts"][0]["nonfinite"] = [[2, "nan"]]
    source = page(value)
    assert source.count("<summary>Marks (1)</summary>") == 1
    assert source.count("<summary>Marks (") == 1


def test_the_axis_of_the_steps_begins_where_the_run_did() -> None:
    assert 'data-from="0.0"' in str(chart(one_chart(x=[50, 100, 500]), "c"))
    assert 'data-from="400.0"' in str(chart(one_chart(x=[400, 450, 500]), "c"))
    assert 'data-from="1.0"' in str(chart(one_chart(x=[1, 2, 3]), "c"))


def test_what_is_not_known_is_said_once_and_small() -> None:
    figures = [
        {
            "name": "mfu",
            "label": "MFU",
            "value": None,
            "text": "unknown",
            "provenance": "give --params; give --peak-tflops",
        },
        {"name": "peak", "label": "peak", "value": None, "text": "unknown", "provenance": "give --peak-tflops"},
        {"name": "devices", "label": "devices", "value": 1, "text": "1", "provenance": "the default"},
    ]
    unknown = {
        "mfu": "give --params",
        "peak": "give --peak-tflops",
        "goodput": "goodput is unknown: no times",
        "log": "gone",
    }
    text = Reading(page({**bare(), "figures": figures, "unknown": unknown})).text
    assert "Not known: MFU, peak. Give --params; give --peak-tflops" in text
    assert text.count("--peak-tflops") == 1
    assert "What is not known" in text
    assert text.count("gone") == 1


def test_limits_that_were_not_given_are_those_that_hold() -> None:
    limits = dict.fromkeys(("max_hours", "max_cost", "stall_s", "start_limit_s", "exit_limit_s"))
    text = Reading(page({**rich(), "limits": {**limits, "max_hours": 25 / 3600}, "cost": {}})).text
    assert "Most time25 s" in text
    assert "Without a new steplearned from the run: no --stall was given" in text
    assert "To the first steponly an alert" in text
    assert "Most costno limit" in text
    assert "Costunknown" not in text


def test_the_parts_of_the_time_add_up() -> None:
    parts = slices(rich()["goodput"])
    assert [one.kind for one in parts] == ["productive", "redone", "other", "restart"]
    assert sum(one.seconds or 0 for one in parts) == pytest.approx(14_022.4)
    assert slices({"wall_s": None, "productive_s": 3.0}) == slices({"wall_s": 3.0, "productive_s": None}) == []
    known = {"goodput": 0.5, "wall_s": 20.0, "productive_s": 10.0}
    unknown = slices({**known, "lost_s": None, "restart_s": 1.0})
    assert [one.seconds for one in unknown] == [10.0, None, 9.0, 1.0]


def test_money_stands_beside_time_where_there_is_a_price() -> None:
    text = Reading(page(rich())).text
    assert "6.60" in text  # 9,549 s at 2.49 an hour
    value = rich()
    value["cost"] = {"spent": None, "price": None, "lost": None}
    assert "Money" not in Reading(page(value)).text


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (duration(None), "unknown"),
        (duration(0), "0 s"),
        (duration(0.434), "0.43 s"),
        (duration(59.9), "1 min"),
        (duration(190), "3 min 10 s"),
        (duration(7500), "2 h 05 min"),
        (duration(1800), "30 min"),
        (duration(400_000), "4 d 15 h"),
        (duration("nan"), "NaN"),
        (number(None), "unknown"),
        (number("inf"), "infinite"),
        (number(124_356_864), "124,356,864"),
        (number(128_328.4, 5), "128,328"),
        (number(3.08714, 5), "3.0871"),
        (number(float("nan")), "NaN"),
        (percent(0.3131), "31.3%"),
        (size(1536), "1.5 KiB"),
        (size(None), "unknown"),
    ],
)
def test_units(said: str, expected: str) -> None:
    assert said == expected
