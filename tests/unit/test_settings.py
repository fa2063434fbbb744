"""Settings: what is accepted, which layer wins, and that every refusal names setting, place and what is accepted."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight import options, places, settings
from overnight.errors import UsageError
from overnight.quantities import (
    RefusedError,
    commands,
    count,
    duration_s,
    epoch_of,
    hours,
    moment,
    number,
    pattern,
    quoted,
    switch,
    text,
    wait_s,
    words,
)
from overnight.spec import RunSpec


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    """An empty project folder, a home, and an environment without anybody's settings."""
    (tmp_path / "project").mkdir()
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "train").write_text("#!/bin/sh\n")
    (tools / "train").chmod(0o755)
    environ = {"PATH": str(tools), "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return {"home": tmp_path / "home", "environ": environ, "cwd": tmp_path / "project"}


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Put this process into a time zone, by the name that TZ has for it."""

    def enter(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield enter
    monkeypatch.undo()
    time.tzset()


def resolve(place: dict[str, Any], argv: tuple[str, ...] = ("train",), **flags: Any) -> settings.Resolved:
    return settings.resolve(flags, argv, **place)


# -- kinds of values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1d", 86400),
        ("90", 90),
        (90, 90),
        ("0.5s", 0.5),
        ("2H", 7200),
    ],
)
def test_durations(raw: object, seconds: float) -> None:
    assert duration_s(raw) == seconds


@pytest.mark.parametrize(
    ("raw", "expected"),
    [("8", 8), (8, 8), (7.5, 7.5), ("7.5", 7.5), ("8h", 8), ("90m", 1.5), ("1h30m", 1.5), (" 2D ", 48), ("1800s", 0.5)],
)
def test_hours_with_or_without_a_unit(place: dict[str, Any], raw: object, expected: float) -> None:
    assert hours(raw) == expected
    assert resolve(place, max_hours=raw).spec.max_hours == expected


@pytest.mark.parametrize("raw", ["", "h", "8x", "8 hours", "-8h", "0h", "nan", True, None, [8], "8h90"])
def test_refused_hours(raw: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence is made elsewhere
        hours(raw)


@pytest.mark.parametrize(
    "raw", ["", "s", "abc", "-5", "-5s", "0", "0s", "nan", "inf", "5x", "30m1h", "1h 30m", True, None, [1], "1e400"]
)
def test_refused_durations(raw: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence is made elsewhere
        duration_s(raw)


@pytest.mark.parametrize(
    ("raw", "whole"),
    [
        ("124356864", 124_356_864),
        ("124_356_864", 124_356_864),
        ("124,439,808", 124_439_808),
        ("124e6", 124_000_000),
        ("124M", 124_000_000),
        ("1.3B", 1_300_000_000),
        ("7b", 7_000_000_000),
        (124e6, 124_000_000),
        (10**18, 10**18),
        ("1e18", 10**18),
    ],
)
def test_counts(raw: object, whole: int) -> None:
    assert count(raw) == whole
    assert isinstance(count(raw), int)


@pytest.mark.parametrize(
    "raw", ["0", "-1", "1.5", "1e-3", "1e999", "1e99999999999", "nan", "inf", "M", "", "12,34", True, None, 1.5, "٣"]
)
def test_refused_counts(raw: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        count(raw)


@pytest.mark.parametrize("raw", ["0", "-1", "nan", "inf", "-inf", "x", True, None, [], {}])
def test_refused_numbers(raw: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        number(raw)


@given(st.one_of(st.text(max_size=20), st.floats(), st.integers(), st.booleans(), st.none()))
def test_no_value_raises_anything_but_the_agreed_errors(raw: object) -> None:
    for setting in options.SETTINGS:
        with contextlib.suppress(ValueError, KeyError, OverflowError):
            setting.parse(raw)


def test_patterns_and_switches() -> None:
    assert pattern(r"it (?P<step>\d+)")
    assert pattern(r"(?P<loss>\d+) (?P<foo>\d+)")
    for bad in ("(", "no groups", r"(\d+)", r"(?P<foo>\d+)", 3):
        with pytest.raises(ValueError):  # noqa: PT011
            pattern(bad)
    assert [switch(raw) for raw in ("1", "Yes", True, "off", False)] == [True, True, True, False, False]
    with pytest.raises(KeyError):
        switch("perhaps")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (r"(?P<foo>\d+)", "names neither step nor loss: at least one of"),
        (r"it (\d+)", "has no named groups: write"),
        (r"(?P<step>\d+", r"is not a regular expression: missing \), unterminated"),
    ],
)
def test_a_wrong_pattern_is_refused_with_the_reason_wherever_it_stands(
    place: dict[str, Any], bad: str, why: str
) -> None:
    sentence = "^" + re.escape(f"pattern '{bad}' (") + "{}" + re.escape(") ") + why
    with pytest.raises(UsageError, match=sentence.format("flag --pattern")):
        resolve(place, pattern=bad)
    file = place["cwd"] / "overnight.toml"
    file.write_text(f"pattern = '{bad}'\n")
    with pytest.raises(UsageError, match=sentence.format(re.escape(str(file)))):
        resolve(place)
    place["environ"]["OVERNIGHT_PATTERN"] = bad
    with pytest.raises(UsageError, match=sentence.format("OVERNIGHT_PATTERN")):
        resolve(place)


def test_a_refused_value_is_shown_as_it_was_written_and_on_one_line(place: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=re.escape(r"grace cannot be '\d' (flag")):
        resolve(place, grace=r"\d")
    with pytest.raises(UsageError, match=re.escape(r"grace cannot be 'a\nb' (flag")):
        resolve(place, grace="a\nb")


@pytest.mark.parametrize("raw", ["4000d", "3.3e8", "1e300", 10**9, "99999999h"])
def test_a_duration_of_more_than_ten_years_is_refused(raw: object) -> None:
    for parse in (duration_s, wait_s):
        with pytest.raises(RefusedError, match=r"^is longer than ten years$"):
            parse(raw)
    assert duration_s("3650d") == 3650 * 86400.0


def test_a_nul_byte_is_refused_wherever_text_is_asked_for(place: dict[str, Any]) -> None:
    for parse, raw in ((text, "a\0b"), (commands, ["x", "a\0b"]), (words, ["a\0b"]), (words, "x a\0b")):
        with pytest.raises(RefusedError, match=r"^holds a NUL byte"):
            parse(raw)
    (place["cwd"] / "overnight.toml").write_text('on-event = ["true", "tell \\u0000"]\n')
    with pytest.raises(UsageError, match=re.escape(r"on-event '[true, tell \x00]' (") + ".*holds a NUL byte"):
        resolve(place)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("2026-01-02", "2026-01-02"),
        ("07:30:00", "07:30:00"),
        ("2026-01-02T07:30:00Z", "2026-01-02 07:30:00+00:00"),
        ("[1, 'a', 2026-01-02, true]", "[1, a, 2026-01-02, true]"),
        ("{of = [1.5]}", "{of = [1.5]}"),
        ("true", "true"),
    ],
)
def test_a_refused_value_of_a_file_is_shown_as_it_was_written(place: dict[str, Any], written: str, shown: str) -> None:
    (place["cwd"] / "overnight.toml").write_text(f"grace = {written}\n")
    with pytest.raises(UsageError, match="^" + re.escape(f"grace cannot be '{shown}' (")):
        resolve(place)
    assert quoted(date(2026, 1, 2)) == "'2026-01-02'"


# -- moments ---------------------------------------------------------------------------------------------------------

BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"  # back from 03:00 to 02:00 on 2026-10-25, on from 02:00 to 03:00 on 2026-03-29


def utc(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("asked", "now", "meant"),
    [
        ("02:30", (2026, 10, 25, 0, 10), (2026, 10, 25, 0, 30)),  # at the first 02:10
        ("02:30", (2026, 10, 25, 0, 40), (2026, 10, 25, 1, 30)),  # at the first 02:40
        ("02:30", (2026, 10, 25, 1, 10), (2026, 10, 25, 1, 30)),  # at the second 02:10
        ("02:30", (2026, 10, 25, 1, 30), (2026, 10, 26, 1, 30)),  # at the second 02:30 itself
        ("02:30", (2026, 10, 24, 22, 0), (2026, 10, 25, 0, 30)),
        ("03:30", (2026, 10, 25, 1, 10), (2026, 10, 25, 2, 30)),
        ("02:30", (2026, 10, 25, 12, 0), (2026, 10, 26, 1, 30)),
        ("02:30", (2026, 3, 28, 23, 0), (2026, 3, 29, 1, 30)),  # left out: as late after 01:59:59 as it would have been
        ("02:30", (2026, 3, 29, 0, 45), (2026, 3, 29, 1, 30)),
        ("02:30", (2026, 3, 29, 2, 0), (2026, 3, 30, 0, 30)),
        ("02:30+00:00", (2026, 10, 25, 1, 10), (2026, 10, 25, 2, 30)),
    ],
)
def test_the_next_such_time_when_clocks_are_changed(
    zone: Callable[[str], None], asked: str, now: tuple[int, ...], meant: tuple[int, ...]
) -> None:
    zone(BERLIN)
    found = epoch_of(moment(asked), utc(*now))
    assert datetime.fromtimestamp(found, tz=UTC) == datetime.fromtimestamp(utc(*meant), tz=UTC)


def test_a_moment_that_is_not_within_ten_years_is_refused(place: dict[str, Any]) -> None:
    now = datetime(2026, 10, 25, 12, tzinfo=UTC)
    for asked, why in (
        ("2026-10-25 11:59Z", "has passed already"),
        ("2036-12-25 12:00Z", "is more than ten years ahead"),
        ("9999-12-31 23:59:59", "is more than ten years ahead"),
        ("0001-01-01 00:00", "(has passed already|cannot be found in the local time zone .*)"),
    ):
        with pytest.raises(RefusedError, match=f"^{why}$"):
            epoch_of(moment(asked), now.timestamp())
        with pytest.raises(UsageError, match=r"^until .* \(flag --until\) "):
            resolve({**place, "now": now.timestamp()}, until=asked)
    near = now + timedelta(days=3650)
    assert epoch_of(near, now.timestamp()) == near.timestamp()


@pytest.mark.parametrize("name", ["XXX-25", "XXX+24:59:59", "XXX-167:59:59", "nowhere/at all", ""])
def test_no_time_zone_breaks_a_moment(place: dict[str, Any], zone: Callable[[str], None], name: str) -> None:
    zone(name)
    now = utc(2026, 10, 25, 12)
    assert now < epoch_of(moment("02:30"), now) <= now + 2 * 86400
    shown = {name: value for name, value, _ in settings.explain(resolve({**place, "now": now}, until="02:30"))}
    assert shown["until"][11:16] == "02:30"


# -- layers ----------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_spec(place: dict[str, Any]) -> None:
    found = resolve(place, name="plain")
    expected = RunSpec(
        name="plain",
        argv=("train",),
        executable=place["environ"]["PATH"] + "/train",
        cwd=str(place["cwd"]),
        log=str(place["home"] / "runs" / "plain" / "output.log"),
    )
    assert found.spec == expected
    assert found.settle_s == 2.0
    assert found.origins == {**dict.fromkeys(options.BY_NAME, "default"), "name": "flag --name"}
    assert found.warnings == ()


def test_each_layer_wins_over_the_next(place: dict[str, Any], tmp_path: Path) -> None:
    user = tmp_path / "config" / "overnight" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text("window = 1\nsteps = 1\ndevices = 1\ngrace = '1s'\n")
    own = place["cwd"] / "overnight.toml"
    own.write_text("window = 2\nsteps = 2\ndevices = 2\n")
    place["environ"] |= {"OVERNIGHT_WINDOW": "3", "OVERNIGHT_STEPS": "3"}
    found = resolve(place, window="4")
    assert (found.spec.window, found.spec.steps, found.spec.devices, found.spec.grace_s) == (4, 3, 2, 1)
    wanted = {"window": "flag --window", "steps": "OVERNIGHT_STEPS", "devices": str(own), "grace": str(user)}
    assert {key: found.origins[key] for key in wanted} == wanted


def test_pyproject_is_read_and_yields_to_our_own_file(place: dict[str, Any]) -> None:
    shared = place["cwd"] / "pyproject.toml"
    shared.write_text("[tool.overnight]\nmax-loss = 12.5\n")
    found = resolve(place)
    assert (found.spec.max_loss, found.origins["max_loss"]) == (12.5, str(shared))
    (place["cwd"] / "overnight.toml").write_text("")
    found = resolve(place)
    assert found.spec.max_loss is None
    assert "pyproject.toml is not read" in found.warnings[0]


def test_a_broken_pyproject_that_is_not_about_us_is_passed_over(place: dict[str, Any]) -> None:
    (place["cwd"] / "pyproject.toml").write_text("[tool.black\n")
    assert resolve(place).spec.window == 10
    (place["cwd"] / "pyproject.toml").write_text("[tool.overnight\n")
    with pytest.raises(UsageError, match="not valid TOML"):
        resolve(place)


def test_rule_tables_and_actions_of_all_layers_are_merged_by_rule(place: dict[str, Any]) -> None:
    (place["cwd"] / "overnight.toml").write_text(
        "[rules.nonfinite]\naction = 'stop'\nsignal = 'kill'\n"
        "[rules.divergence]\naction = 'alert'\nmax_loss = 9\n"
        "[rules.wall-clock]\nmax-hours = 8\n"
    )
    place["environ"]["OVERNIGHT_ACTION"] = "wall_clock=note"
    found = resolve(place, action=["nonfinite=terminate"])
    assert found.spec.actions == {"nonfinite": "terminate", "divergence": "alert", "wall_clock": "note"}
    assert (found.spec.nonfinite_signal, found.spec.max_loss, found.spec.max_hours) == ("kill", 9.0, 8.0)
    assert found.origins["action_nonfinite"] == "flag --action"
    assert found.origins["action_wall_clock"] == "OVERNIGHT_ACTION"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("widow = 3", "widow in .* is no setting; did you mean window?"),
        ("[rules.nonfinit]\naction='stop'", "rules.nonfinit in .* did you mean rules.nonfinite?"),
        ("[rules.nonfinite]\nacton='stop'", "rules.nonfinite.acton in .* did you mean rules.nonfinite.action?"),
        ("[rules]\nnonfinite = 3", "rules.nonfinite in .* must be a table"),
        ("rules = 3", "rules in .* must be tables"),
        ("max_loss = 3\nmax-loss = 4", "max-loss is given twice"),
        ("max_loss = 3\n[rules.divergence]\nmax_loss = 4", "rules.divergence.max_loss is given twice"),
        ("window = -3", "window cannot be '-3' .*overnight.toml.*give a whole number above zero"),
        ("window = true", "window cannot be 'true'"),
        ("grace = nan", "grace cannot be 'nan'"),
        ("action = 3", "action .* must be RULE=ACTION"),
        ("home = 'x'", "home in .* is no setting"),
        ("[tool.overnight]\nwindow = 3", "tool in .* is no setting"),
        ("=", "not valid TOML"),
    ],
)
def test_files_are_refused_with_a_sentence(place: dict[str, Any], text: str, said: str) -> None:
    (place["cwd"] / "overnight.toml").write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        resolve(place)
    assert "\n" not in str(caught.value) or "TOML" in str(caught.value)


def test_our_own_names_are_never_settings_and_strangers_only_warn(place: dict[str, Any]) -> None:
    place["environ"] |= {f"OVERNIGHT_{name}": "x" for name in options.NOT_SETTINGS}
    place["environ"] |= {"OVERNIGHT_GRACES": "5", "OVERNIGHT_ZZZ": "5", "OVERNIGHT_STEPS": ""}
    found = resolve(place)
    assert found.warnings == (
        "OVERNIGHT_GRACES is no setting and is ignored; did you mean OVERNIGHT_GRACE?",
        "OVERNIGHT_ZZZ is no setting and is ignored",
    )
    assert found.origins["steps"] == "default"


@pytest.mark.parametrize(
    "name", [one.name for one in options.SETTINGS if one.parse in (duration_s, count, hours, number)]
)
@pytest.mark.parametrize("raw", ["-1", "0", "nan", "text"])
def test_numbers_that_cannot_be_are_refused_with_their_origin(place: dict[str, Any], name: str, raw: str) -> None:
    label = name.replace("_", "-")
    with pytest.raises(UsageError, match=rf"{label} cannot be '{raw}' \(flag --{label}\): give a"):
        settings.resolve({name: raw}, ("train",), **place)
    place["environ"][f"OVERNIGHT_{name.upper()}"] = raw
    with pytest.raises(UsageError, match=rf"\(OVERNIGHT_{name.upper()}\)"):
        resolve(place)


@pytest.mark.parametrize("word", ["nonfinite", "nonfinite=", "=stop", "nonfinite=kill", ""])
def test_refused_actions(place: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match="is not RULE=ACTION"):
        resolve(place, action=[word])


def test_a_misspelt_rule_is_told_what_it_may_be(place: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"there is no rule 'nonfinit'; did you mean nonfinite\?"):
        resolve(place, action=["nonfinit=alert"])
    with pytest.raises(UsageError, match="there is no rule 'nan'; rules are nonfinite, divergence"):
        resolve(place, action=["nan=stop"])


def test_a_misspelt_outcome_of_a_hook_is_told_what_it_may_be(place: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"ends in :sucess; did you mean :success\?"):
        resolve(place, on_end=["./message.sh:sucess"])
    assert settings.resolve({"on_end": ["scp x host:data"]}, ("train",), **place).spec.on_end == ("scp x host:data",)


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("CUDA_VISIBLE_DEVICES=0", "put variables in front: CUDA_VISIBLE_DEVICES=0 overnight run"),
        ("source", "source is a word of a shell"),
        ("python3 train.py", "this is one word: leave out the quotes"),
        ("train.py", "train.py lies here: -- python3 train.py"),
    ],
)
def test_habits_of_a_shell_get_a_hint(tmp_path: Path, command: str, hint: str) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UsageError, match=hint):
        places.find_executable(command, "/nowhere", str(tmp_path))


# -- what has to hold together ---------------------------------------------------------------------------------------


def test_a_longer_grace_lifts_its_cap_unless_the_cap_was_asked(place: dict[str, Any]) -> None:
    found = resolve(place, grace="2h")
    assert (found.spec.grace_s, found.spec.grace_max_s) == (7200, 7200)
    with pytest.raises(UsageError, match="longer than grace-max"):
        resolve(place, grace="2h", grace_max="1h")


def test_max_loss_holds_only_what_was_asked_and_explain_tells_the_rest(place: dict[str, Any]) -> None:
    found = resolve(place, vocab_size="50257")
    assert found.spec.max_loss is None
    rows = {name: (value, origin) for name, value, origin in settings.explain(found)}
    assert rows["max-loss"][0].startswith("20 ")
    assert rows["vocab-size"] == ("50257", "flag --vocab-size")
    assert {name.replace("-", "_") for name in rows} == set(options.BY_NAME)
    assert {row[0]: row[1] for row in settings.explain(resolve(place))}["max-loss"] == "none"


def test_made_up_names_are_free_and_valid(place: dict[str, Any]) -> None:
    names = {resolve(place).spec.name for _ in range(20)}
    assert len(names) > 15
    assert resolve(place).origins["name"] == "made up"


@pytest.mark.parametrize("name", ["../x", "-x", "a.b", "a/b", "x" * 65, "ä", " "])
def test_names_that_could_leave_the_folder_are_refused(place: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a run"):
        resolve(place, name=name)


def test_explaining_needs_no_command(place: dict[str, Any]) -> None:
    found = resolve(place, argv=())
    assert found.spec.executable == ""
    assert found.spec.argv == ()


# -- the machine -----------------------------------------------------------------------------------------------------


def test_the_executable_is_found_as_a_shell_finds_it(place: dict[str, Any], tmp_path: Path) -> None:
    first, second, here = tmp_path / "first", tmp_path / "second", place["cwd"]
    for folder in (first, second):
        folder.mkdir()
    (first / "go").mkdir()  # a folder of that name is passed over
    (second / "go").write_text("")
    path = f"{first}:{second}"
    with pytest.raises(UsageError, match=rf"not executable: go \(chmod \+x {second}/go, or"):
        places.find_executable("go", path, str(here))
    (second / "go").chmod(0o755)
    assert places.find_executable("go", path, str(here)) == str(second / "go")
    (here / "run.sh").write_text("")
    with pytest.raises(UsageError, match=r"not executable: ./run.sh \(chmod \+x .*, or run it with its interpreter\)"):
        places.find_executable("./run.sh", path, str(here))
    (here / "run.sh").chmod(0o755)
    assert os.path.samefile(places.find_executable("./run.sh", path, str(here)), here / "run.sh")
    assert os.path.samefile(places.find_executable("run.sh", "", str(here)), here / "run.sh")  # an empty entry is .


@pytest.mark.parametrize("command", ["nosuch", "", "./nosuch"])
def test_commands_that_do_not_exist(place: dict[str, Any], command: str) -> None:
    with pytest.raises(UsageError, match="command not found"):
        resolve(place, argv=(command,))


def test_a_folder_is_no_command(place: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        resolve(place, argv=(str(tmp_path),))


def test_logs_must_be_regular_files_in_folders_that_exist(place: dict[str, Any]) -> None:
    here = place["cwd"]
    (here / "old.log").write_text("before\n")
    os.mkfifo(here / "pipe")
    (here / "link").symlink_to("/dev/null")
    assert resolve(place, log="old.log").spec.log == str(here / "old.log")
    assert resolve(place, log="new.log").spec.log == str(here / "new.log")
    assert (here / "old.log").read_text() == "before\n"
    for bad in ("/dev/null", "pipe", "link", ".", "no/such/x.log", "new.log/", "old.log/x"):
        with pytest.raises(UsageError, match=r"log \(flag --log\)"):
            resolve(place, log=bad)


def test_checkpoints_may_not_exist_yet_but_must_not_be_a_file(place: dict[str, Any]) -> None:
    assert resolve(place, checkpoints="out").spec.checkpoints == str(place["cwd"] / "out")
    (warning,) = resolve(place, checkpoints="out").warnings
    assert warning.startswith(f"checkpoints (flag --checkpoints): {place['cwd']}/out does not exist yet; no save")
    (place["cwd"] / "there").mkdir()
    assert resolve(place, checkpoints="there").warnings == ()
    (place["cwd"] / "out").write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        resolve(place, checkpoints="out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize("mode", [0o400, 0o200])
def test_an_old_log_must_be_both_readable_and_writable(place: dict[str, Any], mode: int) -> None:
    (place["cwd"] / "old.log").touch(mode)
    with pytest.raises(UsageError, match="may not be both read and written"):
        resolve(place, log="old.log")


def test_line_buffering_needs_stdbuf(place: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"line-buffered \(flag --line-buffered\) needs the program stdbuf"):
        resolve(place, line_buffered=True)
    tool = Path(place["environ"]["PATH"]) / "stdbuf"
    tool.touch(0o755)
    assert resolve(place, line_buffered=True).spec.line_buffered


def test_the_loss_limit_is_that_of_a_language_model_unless_one_is_asked_for(place: dict[str, Any]) -> None:
    for flags, limit, shown in (
        ({}, None, "none"),
        ({"vocab_size": "50257"}, 20.0, "20 (a language model"),
        ({"tokens_per_step": "1k"}, 20.0, "20 (a language model"),
        ({"tokens_per_step": "1k", "max_loss": "12"}, 12.0, "12"),
    ):
        found = resolve(place, **flags)
        assert found.spec.loss_limit() == limit
        (value,) = [value for name, value, _ in settings.explain(found) if name == "max-loss"]
        assert value.startswith(shown)


def test_a_command_that_the_run_folder_could_not_hold_is_refused(place: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="word 2 of the command is not valid UTF-8"):
        resolve(place, argv=("train", os.fsdecode(b"\xff")))


@pytest.mark.parametrize(
    ("alone", "with_it"),
    [
        ({"exit_limit": "20s"}, {"steps": "100"}),
        ({"resume_args": "--resume latest"}, {"recover": True}),
        ({"backoff": "5s"}, {"restarts": "3"}),
    ],
)
def test_a_setting_that_does_nothing_alone_is_warned_about(
    place: dict[str, Any], alone: dict[str, Any], with_it: dict[str, Any]
) -> None:
    (warning,) = settings.resolve(alone, ("train",), **place).warnings
    assert "does nothing without --" in warning
    assert settings.resolve({**alone, **with_it}, ("train",), **place).warnings == ()
