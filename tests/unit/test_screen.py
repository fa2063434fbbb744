"""Bytes to the lines that a terminal would leave: bars folded into their last state, no metric lost behind one."""

from __future__ import annotations

import io
import random
import re
import tracemalloc
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overnight.bars import only_a_bar, superseded
from overnight.screen import LONGEST_LINE, REACH, Lines, Shown

BLOCK = 1 << 18
TQDM = " {0}%|{1:10}| {0}/100 [00:{0:02d}<01:00,  9.{0:02d}it/s]"


def shown(raw: bytes) -> list[str]:
    return [line.text for line in lines_of([raw])]


def lines_of(chunks: list[bytes], offset: int = 0) -> list[Shown]:
    feed = Lines(offset)
    return [*(line for chunk in chunks for line in feed.feed(chunk)), *feed.flush()]


def tqdm(at: int) -> bytes:
    return TQDM.format(at, "█" * (at // 10)).encode()


KERAS = [
    f"{at:3d}/100 [{'=' * (at // 4)}>{'.' * (25 - at // 4)}] - ETA: {100 - at}s - loss: {2 - at / 100:.4f}".encode()
    for at in range(100)
]


@pytest.mark.parametrize(
    ("raw", "texts"),
    [
        (b"one\ntwo\n\nlast", ["one", "two", "", "last"]),
        (b"crlf\r\nmixed\n\r\nend\r\n", ["crlf", "mixed", "", "end"]),
        (b"\r 1%\r 50%\r100%\n", ["100%"]),
        (b"\r 1%\r 50%\r", [" 50%"]),
        (b"\rstep 1 loss 2.5\rstep 2 loss 2.4\rstep 3 loss 2.3", ["step 3 loss 2.3"]),
        # a metric and a bar on one physical line, whichever way they came there
        (b"{'loss': 2.5}\r" + tqdm(3) + b"\r" + tqdm(4) + b"\n", ["{'loss': 2.5}", tqdm(4).decode()]),
        (b"\r" + tqdm(3) + b"\r" + b" " * 60 + b"\r{'loss': 2.5}\n\r" + tqdm(4), ["{'loss': 2.5}", tqdm(4).decode()]),
        (b"\r" + tqdm(3) + b"{'loss': 2.5}\r" + tqdm(4), [tqdm(3).decode() + "{'loss': 2.5}", tqdm(4).decode()]),
        (b"{'loss': 2.5, 'lear\r" + tqdm(3) + b"\rning_rate': 1e-05}\n", ["{'loss': 2.5, 'lear", "ning_rate': 1e-05}"]),
        (b"step 1 loss 2.5\r" + tqdm(3) + b"\rstep 2 loss 2.4\r" + tqdm(4), ["step 1 loss 2.5", "step 2 loss 2.4"]),
        (b"Epoch 1/10, loss: 2.5, acc: 0.9\r" + tqdm(3) + b"\n", ["Epoch 1/10, loss: 2.5, acc: 0.9", tqdm(3).decode()]),
        # a bar that is wiped leaves nothing
        (b"\r" + tqdm(99) + b"\r" + b" " * 60 + b"\rdone\n", ["done"]),
        (b"\r" + tqdm(99) + b"\x1b[2K\rdone\n", ["done"]),
        (b"\r" + tqdm(99) + b"\r" + b" " * 60 + b"\r", []),
        # text that is wiped is shown all the same
        (b"Loading the model\r\x1b[Kready\n", ["Loading the model", "ready"]),
        # keras and other backspacers
        (b"".join(b"\b" * 90 + b"\r" + one for one in KERAS) + b" val 3\n", [f"{KERAS[-1].decode()} val 3"]),
        (b"".join(b"\b" * 80 + frame for frame in KERAS), [KERAS[-1].decode()]),
        (b"loading |\b/\b-\b\\\b", ["loading \\"]),
        (b"\b\bab\bc\n", ["ac"]),
        (b"done 1%\b\b2%\b\b3%\n", ["done 3%"]),
        # colours of a bar, and of what is printed beside it
        (b"\r\x1b[32m" + tqdm(3) + b"\x1b[0m\r\x1b[32m" + tqdm(4) + b"\x1b[0m\n", [tqdm(4).decode()]),
        (b"\x1b[1mloss\x1b[0m 2.5\r" + tqdm(3) + b"\n", ["loss 2.5", tqdm(3).decode()]),
        (b"\x1b[32m|\x1b[0m\b/\b-\b\x1b[1m\\\n", ["\\"]),
        # horizontal moves and erasing
        (b"abcdef\x1b[3D\x1b[K\n", ["abc"]),
        (b"abcdef\x1b[2Gxy\n", ["axydef"]),
        (b"a\x1b[3Cb\n", ["a   b"]),
        # noise
        (b"nul\0l\n\0\0\n", ["null", ""]),
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x \x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\\n", ["red x link"]),
        (b"a\x1b]52;c;aGk=\nb\n", ["a", "b"]),
        (b"a\x1b]0;never ended\rb\n", ["a", "b"]),
        (b"a\x1b]0;t\x1b[31mb\n", ["ab"]),
        (b"cut \x1b[3", ["cut "]),
        (b"cut \x1b", ["cut "]),
        (b"cut \x1b]52;c;abc", ["cut "]),
        ("step 1 loss 2\n".encode("utf-16"), ["\ufffd\ufffdstep 1 loss 2"]),
        (b"half \xe2\x96", ["half \ufffd"]),
    ],
)  # fmt: skip
def test_what_a_terminal_would_leave(raw: bytes, texts: list[str]) -> None:
    found = shown(raw)
    if raw.startswith(b"step 1 loss 2.5\r"):
        assert found == [*texts, tqdm(4).decode()]
    else:
        assert found == texts


@pytest.mark.parametrize(
    ("frame", "bar"),
    [
        (tqdm(7), True),
        (b"epochs:  33%|\xe2\x96\x88  | 1/3 [00:00<00:00, 535.12it/s, loss=2.3, lr=1e-05]", True),
        (b"12it [00:01,  9.50it/s]", True),
        (b"Training \xe2\x94\x81\xe2\x94\x81\xe2\x94\x81\xe2\x94\x81 50% 0:00:10", True),
        (KERAS[50], True),
        (b"  49%", True),
        (b"[5/100]", True),
        ("┏━━━━┳━━━┓".encode(), True),
        (b"      ", True),
        (tqdm(7) + b"{'loss': 2.5}", False),
        (tqdm(7) + b" saved to x", False),
        (b"{'loss': 2.5} " + tqdm(7), False),
        (b"Training \xe2\x94\x81\xe2\x94\x81\xe2\x94\x81\xe2\x94\x81 50% 0:00:10step 5 loss 2.1", False),
        (b"step 5 loss 2.1", False),
        (b"Epoch 1/10, loss: 2.5", False),
        (b"val accuracy 49.2%", False),
        (b"x" * 5000, False),
    ],
)
def test_what_is_only_a_bar(frame: bytes, bar: bool) -> None:
    assert only_a_bar(frame) is bar


def test_what_was_written_over_by_the_same_or_by_something_else() -> None:
    assert superseded(b"step 5 loss 2.1", b"step 6 loss 2.0")
    assert superseded(b"Copying weights of layer7.bias", b"Copying weights of embed.weight")
    assert not superseded(b"Epoch 3: train loss 2.1", b"Epoch 3: val loss 2.4")
    assert not superseded(b"step 5 loss 2.1", b"saved checkpoint-5")


def test_a_frame_has_the_offset_of_its_first_byte() -> None:
    raw = b"one\nnote\r" + tqdm(1) + b"\r" + tqdm(2) + b"\n\x1b[31mtwo\x1b[0m\n\xe2\x96\x88x"
    found = lines_of([raw], 1000)
    texts = ["one", "note", tqdm(2).decode(), "two", "█x"]
    assert [line.text for line in found] == texts
    places = [raw.index(part) for part in (b"one", b"note", tqdm(2), b"\x1b[31m", b"\xe2\x96\x88x")]
    assert [line.offset - 1000 for line in found] == places


# -- however the bytes come --------------------------------------------------------------------------------------------

PARTS = [b"\r", b"\n", b"\b", b"\b\b\b\b", b"\r\n", b"\x1b[K", b"\x1b[2K", b"\x1b[1m", b"\x1b]0;t\x07", b"\0", b"\xff"]
PARTS += [b"   ", b"step 5 loss 2.1", b"{'loss': 2}", "█▏語".encode(), tqdm(3), tqdm(4), KERAS[3]]
PARTS += [b"\x1b", b"\x1b]52;", b"7"]


@example("   \b█▏語".encode(), 0)
@given(st.lists(st.sampled_from(PARTS), max_size=40).map(b"".join) | st.binary(max_size=300), st.integers(0, 2**32))
def test_lines_do_not_depend_on_how_the_bytes_arrive(raw: bytes, seed: int) -> None:
    cuts = sorted(random.Random(seed).sample(range(len(raw) + 1), k=min(5, len(raw) + 1)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    whole = lines_of([raw])
    assert lines_of(chunks) == whole
    offsets = [line.offset for line in whole]
    assert offsets == sorted(offsets)
    assert not any(set(line.text) & set("\r\n\b\x1b\x07\0") for line in whole)


@given(
    st.lists(st.sampled_from([b"\n", b"\r" + tqdm(3) + b"\r", b"\n\r" + tqdm(4) + b"\r", b"\r  \r" + KERAS[7] + b"\r"]))
)
def test_no_record_is_lost_whatever_bars_are_drawn_around_it(between: list[bytes]) -> None:
    raw = b"".join(b"step %d loss 2.5" % at + bar for at, bar in enumerate(between))
    found = [line for line in shown(raw) if line.startswith("step")]
    assert found == [f"step {at} loss 2.5" for at in range(len(between))]


@given(st.lists(st.text(st.characters(exclude_categories=("C", "Z")), max_size=20), max_size=20))
def test_text_without_any_drawing_is_shown_as_it_is(rows: list[str]) -> None:
    assert shown("".join(f"{row}\n" for row in rows).encode()) == rows


# -- bars of real programs ---------------------------------------------------------------------------------------------


@pytest.fixture
def tqdm_module() -> ModuleType:
    return pytest.importorskip("tqdm", reason="tqdm is not installed")


@pytest.mark.parametrize("leave", [True, False])
def test_nested_bars_and_what_is_printed_among_them(tqdm_module: ModuleType, leave: bool) -> None:
    out = io.StringIO()
    for epoch in tqdm_module.tqdm(range(3), desc="epochs", file=out, mininterval=0):
        for step in tqdm_module.tqdm(range(50), desc="steps", file=out, mininterval=0, leave=leave):
            if step == 20:
                tqdm_module.tqdm.write(f"epoch {epoch} loss 2.{epoch}", file=out)
            if step == 40:
                out.write(f"{{'loss': {epoch}}}\n")
    raw = out.getvalue().encode()
    found = shown(raw)
    assert len(raw) > 10_000
    assert [line for line in found if line.startswith("epoch ")] == [f"epoch {at} loss 2.{at}" for at in range(3)]
    assert sum("{'loss': " in line for line in found) == 3
    assert sum("steps: 100%" in line for line in found) == (3 if leave else 0)
    assert found[-1].startswith("epochs: 100%")
    assert len(found) == 3 + 3 + 1 + (3 if leave else 0)


def rich_log(draw: str) -> Iterator[str]:
    """Yield what a console that thinks it is a terminal is sent: redraws with cursor up and erase."""
    pytest.importorskip("rich", reason="rich is not installed")
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress
    from rich.table import Table

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    if draw == "bars":
        with Progress(console=console, auto_refresh=False) as bars:
            tasks = [bars.add_task(name, total=200) for name in ("Training", "Eval")]
            for step in range(200):
                for task in tasks:
                    bars.update(task, advance=1)
                bars.refresh()
                if step % 20 == 0:
                    bars.console.print(f"step {step} loss 2.5")
    else:
        with Live(console=console, auto_refresh=False) as live:
            for step in range(100):
                table = Table("step", "loss")
                for row in range(step):
                    table.add_row(str(row), "2.5") if row > step - 5 else None
                live.update(table, refresh=True)
                if step % 20 == 0:
                    live.console.print(f"step {step} loss 2.5")
    yield out.getvalue()


@pytest.mark.parametrize("draw", ["bars", "table"])
def test_redraws_with_cursor_up(draw: str) -> None:
    raw = next(rich_log(draw)).encode()
    found = shown(raw)
    assert len(raw) > 20_000
    steps = range(0, 200 if draw == "bars" else 100, 20)
    assert [line for line in found if line.startswith("step")] == [f"step {step} loss 2.5" for step in steps]
    assert len(found) < len(steps) + 15
    assert re.search("Eval .*100%" if draw == "bars" else "98 +│ 2.5", "\n".join(found[-3:]))


def test_a_screen_that_is_drawn_from_its_top() -> None:
    frames = b"".join(b"\x1b[H\x1b[Jtop %d\nrow a %d\nrow b\n" % (at, at) for at in range(200))
    assert shown(b"before\n" + frames + b"bye\n") == ["before", "top 199", "row a 199", "row b", "bye"]
    frames = b"".join(b"\x1b[H\x1b[2Jtop %d\x1b[4;1Hlow %d" % (at, at) for at in range(200))
    assert shown(frames) == ["top 199", "low 199"]


def test_a_foreign_line_below_a_redrawn_block_is_not_lost() -> None:
    block = [b"\x1b[1A\x1b[2K" * 2 + b"\rTraining %d%%|####|\nLeft %d s\n" % (at, 100 - at) for at in range(100)]
    block[50] = b"step 50 loss 2.5\n" + block[50]
    assert "step 50 loss 2.5" in shown(b"Training 0%|    |\nLeft 100 s\n" + b"".join(block))


# -- live --------------------------------------------------------------------------------------------------------------


def test_a_state_that_was_told_is_not_told_again() -> None:
    feed = Lines()
    assert list(feed.feed(b"one\n\r 10%|#   |")) == [Shown(0, "one")]
    assert list(feed.standing()) == [Shown(5, " 10%|#   |")]
    assert list(feed.standing()) == []
    assert list(feed.feed(b"\r 20%|##  |\r 30%|### |")) == []
    assert [line.text for line in feed.standing()] == [" 30%|### |"]
    assert feed.pending() == " 30%|### |"
    assert list(feed.feed(b"\ntwo\n")) == [Shown(38, "two")]
    list(feed.feed(b"\r 90%"))
    assert [line.text for line in feed.standing()] == [" 90%"]
    assert [line.text for line in feed.feed(b"\r100%\n")] == ["100%"]


def test_rows_that_are_held_for_a_cursor_are_told_when_they_stand() -> None:
    feed = Lines()
    list(feed.feed(b"\router 1%|\n\rinner 1%|\x1b[A"))
    assert list(feed.feed(b"\r{'loss': 2.5}\n\router 2%|")) == []
    assert [line.text for line in feed.standing()] == ["{'loss': 2.5}", "outer 2%|"]
    assert list(feed.feed(b"\n\rinner 2%|\x1b[A")) == []
    assert [line.text for line in feed.feed(b"\r{'loss': 2.4}\n\router 3%|\n")] == ["{'loss': 2.4}"]


def test_what_is_unfinished_when_a_log_begins_anew() -> None:
    feed = Lines(100)
    list(feed.feed(b"half \x1b]0;title"))
    assert list(feed.restart()) == [Shown(100, "half ")]
    assert list(feed.feed(b"new\n")) == [Shown(0, "new")]


# -- endless -----------------------------------------------------------------------------------------------------------


def test_endless_lines_come_in_pieces() -> None:
    feed = Lines()
    pieces = [line for _ in range(50) for line in feed.feed(b"x" * 100_000)]
    assert all(len(line.text) <= LONGEST_LINE for line in pieces)
    pieces += feed.flush()
    assert sum(len(line.text) for line in pieces) == 5_000_000
    assert [line.offset for line in pieces] == [at * LONGEST_LINE for at in range(len(pieces))]
    wide = "語" * 100_000
    assert "".join(shown(wide.encode())) == wide


def test_an_endless_bar_is_one_line() -> None:
    feed = Lines()
    assert [line for at in range(50) for line in feed.feed(b"%9d%% \r" % at * 10_000)] == []
    assert feed.pending() == "       49% "
    assert [line.text for line in feed.feed(b"done\n")] == ["done"]


FLOODS = {
    "bars": lambda at: b"\r" + tqdm(at % 100),
    "text that is written over": lambda at: b"\r%x loading" % (at * 7919 % 65521),
    "backspaces": lambda at: b"|\b" if at % 2 else b"/\b",
    "a title without an end": lambda at: b"\x1b]0;" if at == 0 else b"x" * 100,
    "a sequence without an end": lambda at: b"\x1b[" if at == 0 else b"1;" * 50,
    "colours without a newline": lambda _: b"\x1b[31mred\x1b[0m" * 5,
    "moves up": lambda at: b"\x1b[%dA\rrow %d\n\n" % (at % 9999, at),
    "far places": lambda at: b"\x1b[%d;%dHx" % (at * 31 % 9999, at * 17 % 300),
    "far columns": lambda at: b"\x1b[60000Gx\n" if at % 100 == 0 else b"\x1b[99999999999Cx\n",
    "no end at all": lambda _: b"\xff" * 100,
    "nothing": lambda _: b"\0" * 100,
}


@pytest.mark.parametrize("flood", FLOODS)
def test_memory_is_bounded_whatever_is_printed(flood: str) -> None:
    feed, count, largest = Lines(), 0, 0
    tracemalloc.start()
    for block in range(20):
        data = b"".join(FLOODS[flood](at) for at in range(block * 1000, block * 1000 + 1000))
        for line in feed.feed(data):
            count += 1
            largest = max(largest, len(line.text))
    held = sum(len(row.data) + sum(len(line.text) for line in row.above) for row in feed._rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert largest <= LONGEST_LINE
    assert len(feed._rows) <= REACH + 1
    assert held < 4 << 20
    assert peak < 24 << 20


def test_digits_without_end_cost_no_time_without_end() -> None:
    """A frame of digits is looked through once: a pattern that starts anew at each of them took a minute for one."""
    shown = Lines(0)
    for _ in range(20):
        shown.feed(b"ids " + b"9" * 1990 + b"\r")
    assert [line.text for line in shown.feed(b"done\n")][-1] == "done"
