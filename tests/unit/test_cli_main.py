"""The door: verbs, wrong use, exit codes and sentences instead of tracebacks. No run is started here."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from overnight import __version__, cli, options
from overnight.cli import door


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, no settings from outside, an empty working folder."""
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def command(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "overnight", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, **more)  # type: ignore[call-overload, no-any-return]


WRONG = {
    "foo": "there is no verb 'foo'",
    "--foo": "no option of overnight itself",
    "ls --foo": "unrecognized arguments: --foo",
    "ls --js": "unrecognized arguments: --js",
    "status a b": "unrecognized arguments: b",
    "run": "no command after `--`",
    "run --": "no command after `--`",
    "run python train.py": "put `--` before the command: overnight run [options] -- python train.py",
    "run python train.py --lr 3": "put `--` before the command",
    "run --bogus -- true": "unrecognized arguments: --bogus",
    "run stray -- true": "unrecognized arguments: stray",
    "run --grace -- true": "argument --grace: expected one argument",
    "run --grace -5 -- true": "grace cannot be '-5' (flag --grace)",
    "run --grace=-5s -- true": "grace cannot be '-5s' (flag --grace)",
    "run --params 0 -- true": "params cannot be '0'",
    "run --action nonfinite=explode -- true": "is not RULE=ACTION",
    "run --foreground --follow -- true": "not allowed with argument",
    "run --json --follow -- true": "--json goes with neither",
    "run --name ../x -- true": "'../x' cannot name a run",
    "run --name=-x -- true": "'-x' cannot name a run",
    "run --pattern (?P<foo>\\d+) -- true": "pattern '(?P<foo>\\d+)' (flag --pattern) names neither step nor loss",
    "run --pattern (?P<foo>\\d+) --explain": "pattern '(?P<foo>\\d+)' (flag --pattern) names neither step nor loss",
    "run --pattern ( -- true": "pattern '(' (flag --pattern) is not a regular expression: missing )",
    "run --log /dev/null -- true": "is not a regular file",
    "run -- nosuchcommand": "command not found: nosuchcommand (looked in PATH)",
    "run -- /": "is a directory",
    "clean": "clean needs the names of ended runs, or --all",
    "wait --timeout soon": "--timeout cannot be 'soon'",
    "logs -n -3": "--lines cannot be '-3'",
    "logs --raw --json": "not allowed with argument",
    "clean --all --force": "--force goes with names",
    "demo --what": "unrecognized arguments",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_use_is_one_sentence_and_exit_code_2(words: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 2
    said = capsys.readouterr()
    assert WRONG[words] in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not home.exists()


@pytest.mark.parametrize("verb", ["status", "logs", "attach", "stop", "wait"])
@pytest.mark.parametrize("name", [[], ["nosuch"]])
def test_no_such_run_is_102(verb: str, name: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, *name]) == 102
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help_with_examples_in_80_columns(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert f"overnight {verb}" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_help_of_run_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["run", "--help"])
    shown = capsys.readouterr().out
    for setting in options.SETTINGS:
        assert (setting.flag if not setting.name.startswith("action_") else "--action") in shown


def test_help_and_version_of_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"overnight {__version__}\n"
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in cli.VERBS)
    assert cli.main([]) == 2


def test_explain_shows_every_setting_and_starts_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("overnight.toml").write_text("window = 20\n")
    assert cli.main(["run", "--grace", "2m", "--explain", "--json"]) == 0
    rows = {row["setting"]: (row["value"], row["origin"]) for row in json.loads(capsys.readouterr().out)}
    assert rows["grace"] == ("120 s", "flag --grace")
    assert rows["window"] == ("20", str(Path.cwd() / "overnight.toml"))
    assert len(rows) == len(options.SETTINGS)
    assert cli.main(["run", "--explain", "--", "nosuchcommand"]) == 2
    assert not home.exists()


def test_explain_keeps_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--tokens-per-step", "512k", "--peak-tflops", "312.5", "--log", "x" * 40, "--explain"]) == 0
    shown = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in shown if not line.startswith(" ")}
    assert rows["tokens-per-step"].split()[1] == "512000"
    assert rows["peak-tflops"].split()[1] == "312.5"
    assert rows["line-buffered"].split()[1] == "false"
    at = shown.index(rows["log"])
    assert rows["log"].endswith("x" * 40)
    assert shown[at + 1] == " " * 56 + "flag --log"
    assert {line.index("default") for line in shown if line.endswith(" default")} == {56}


def test_an_unknown_environment_name_only_warns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVERNIGHT_GRACEE", "3")
    monkeypatch.setenv("OVERNIGHT_RUN_ID", "outer")
    assert cli.main(["run", "--explain"]) == 0
    assert (
        capsys.readouterr().err
        == "overnight: OVERNIGHT_GRACEE is no setting and is ignored; did you mean OVERNIGHT_GRACE?\n"
    )


def test_another_system_gets_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cli.main(["ls"]) == 2
    assert "needs Linux" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_what_the_system_refuses_is_one_sentence_with_the_place(number: int) -> None:
    said = door._sentence(OSError(number, os.strerror(number), "/some/place"))
    assert "/some/place" in said
    assert "\n" not in said


def test_a_home_that_is_a_file_is_one_sentence(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.write_text("")
    assert cli.main(["ls"]) == 1
    said = capsys.readouterr().err
    assert str(home) in said
    assert said.count("\n") == 1


def test_a_reader_that_leaves_and_a_full_disk_behind_stdout_are_quiet(home: Path) -> None:
    for number in range(300):
        (home / "runs" / f"run-{number}").mkdir(parents=True)
    line = f"{sys.executable} -m overnight ls | head -n 1; echo ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, timeout=60)
    assert found.stderr == ""
    assert found.stdout.splitlines()[-1] in ("141", "0")  # 0 if head was slower than ls
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "overnight", "ls"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert found.returncode == 1
    assert found.stderr.startswith("overnight: the disk is full")
    assert found.stderr.count("\n") == 1


def test_looking_is_light() -> None:
    heavy = "msgspec pathlib typing subprocess sqlite3 tomllib overnight.settings overnight.launch overnight.folder"
    script = "import sys, overnight.cli; overnight.cli.main(['ls']); print(*sys.modules, file=sys.stderr)"
    found = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, timeout=60, check=True,
                           env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])})  # fmt: skip
    assert not set(heavy.split()) & set(found.stderr.split())


def test_the_module_is_the_command() -> None:
    assert command("--version").stdout.startswith("overnight ")
    assert command("status").returncode == 102
