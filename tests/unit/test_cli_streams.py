"""Standard streams that are closed, Ctrl-C before anything is loaded, and what is said of a thing that fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from overnight.cli import door, main, terminal
from overnight.cli.flags import lines_asked
from overnight.cli.follow import Follower, exists, offset_of_last
from overnight.cli.verbs import SHOWING, VERBS
from overnight.errors import UsageError

LOG = "".join(f"step: {step}, loss: {3 - step / 10}\n" for step in range(1, 9))


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a folder with a log, with no settings of anybody's and a home of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "a.log").write_text(LOG)
    return tmp_path


def shell(words: str) -> subprocess.CompletedProcess[str]:
    line = f"{sys.executable} -m overnight {words}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("words", ["report a.log", "replay a.log", "read a.log --json", "ls"])
def test_what_only_prints_fails_in_one_sentence_without_a_standard_output(words: str) -> None:
    found = shell(f"{words} >&-")
    assert found.returncode == 1
    assert found.stderr == "overnight: nothing can be printed: standard output is closed\n"


def test_without_streams_no_file_takes_their_numbers(nowhere: Path) -> None:
    found = shell("report a.log --html night.html 1>&- 2>&- 0<&-")
    assert found.returncode == 0
    page = (nowhere / "night.html").read_text()
    assert page.rstrip().endswith("</html>")
    assert "overnight: the report of" not in page


def test_what_is_said_for_stderr_never_lands_in_the_output(nowhere: Path) -> None:
    found = shell("report a.log --html night.html 2>&-")
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("verb", VERBS)
def test_closed_streams_become_ones_that_can_be_written_to_or_fail(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    terminal.open_closed(showing=verb in SHOWING)
    with sys.stderr as said:
        said.write("lost")
    sys.stdout.write("for nobody")
    assert not sys.stdout.isatty()
    assert sys.stdout.encoding == "utf-8"
    if verb in SHOWING:
        with pytest.raises(OSError, match="Bad file descriptor"):
            sys.stdout.flush()
        terminal.silence()
    sys.stdout.close()


@pytest.mark.parametrize("module", ["overnight.cli.door", "argparse", "overnight.cli.parser", "overnight.cli.look"])
def test_a_ctrl_c_while_the_command_is_loaded_is_130_and_no_traceback(module: str) -> None:
    script = f"""
import sys
class Struck:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Struck())
sys.modules.pop({module!r}, None)
from overnight.cli import main
sys.exit(main(["ls"]))
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60, cwd="/"
    )
    assert (found.returncode, found.stderr, found.stdout) == (130, "", "")


def test_only_names_are_loaded_before_the_guard() -> None:
    script = "import sys; before = set(sys.modules); import overnight.cli; print(*set(sys.modules) - before)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert set(found.stdout.split()) <= {"overnight", "overnight.cli", "overnight.cli.verbs", "__future__"}


SAID = {
    errno.EACCES: "may not be read or written",
    errno.EISDIR: "is a folder",
    errno.ENOTDIR: "has a file where a folder is needed",
    errno.ELOOP: "leads back to itself",
    errno.ENOSPC: "the disk is full: /some/log",
    errno.EIO: "Input/output error: /some/log",
}


@pytest.mark.parametrize("number", SAID)
def test_the_thing_that_failed_is_named_and_not_what_is_printed_to(number: int) -> None:
    said = door._sentence(OSError(number, os.strerror(number), "/some/log"))
    assert SAID[number] in said
    assert "/some/log" in said
    assert "printed to" not in said


def test_a_folder_that_is_gone_is_not_blamed_on_the_output() -> None:
    assert "this was called in is gone" in door._sentence(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert "printed to" in door._sentence(OSError(errno.ENOSPC, "No space left on device"))


def test_a_log_that_is_a_folder_is_named(nowhere: Path) -> None:
    with Follower(str(nowhere)) as follower, pytest.raises(IsADirectoryError) as failed:
        follower.read()
    assert failed.value.filename == str(nowhere)
    with pytest.raises(IsADirectoryError) as failed:
        offset_of_last(str(nowhere), 3)
    assert failed.value.filename == str(nowhere)


def test_a_log_that_may_not_be_seen_is_not_called_missing(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert exists(str(nowhere / "a.log"))
    assert not exists(str(nowhere / "none.log"))

    def refused(path: str) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(PermissionError):
        exists(str(nowhere / "a.log"))


def test_a_number_of_lines_that_is_too_large_is_called_so() -> None:
    assert lines_asked("20") == 20
    assert lines_asked("0" * 30 + "7") == 7
    assert lines_asked("0") == 0
    with pytest.raises(UsageError, match="no log has so many lines"):
        lines_asked("9" * 21)
    with pytest.raises(UsageError, match="give a whole number"):
        lines_asked("2.5")


def test_read_takes_a_pipe_and_refuses_what_has_no_end(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", "/dev/zero"]) == 2
    assert capsys.readouterr().err.startswith("overnight: /dev/zero is not a file")
    found = shell("read <(cat a.log)")
    assert found.returncode == 0
    assert "8 training records" in found.stdout


def test_read_says_that_a_number_is_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", "a.log", "-n", "9" * 21]) == 2
    assert "is too large a number of records" in capsys.readouterr().err
