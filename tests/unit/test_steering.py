"""Whether a command goes on from the save that it is given: found through modules, shell scripts and imports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overnight.resumeproof.absolutes import texts
from overnight.resumption.steering import asks, steered
from overnight.scripts import MOST_FILES, named, reached
from overnight.spec import RunSpec

READS = "import os\nwhere = os.environ.get('OVERNIGHT_CHECKPOINT')\n"


def asked(folder: Path, *argv: str) -> bool:
    return steered(RunSpec(name="r", argv=argv, executable="python", cwd=str(folder), log="l"))


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_sh", ".sh")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "argv",
    [
        ("python", "train.py"),
        ("python", "-u", "./train.py"),
        ("python", "-m", "pkg.mod"),
        ("python", "-um", "pkg.mod"),
        ("torchrun", "-m", "pkg"),
        ("sh", "-c", "python train.py --lr 1"),
        ("bash", "-c", "set -e; (python 'train.py')"),
        ("sh", "-c", "cd pkg && python mod.py"),
        ("bash", "run.sh"),
        ("./start",),
        ("bash", "outer.sh"),
        ("python", "plain.py"),
        ("python", "parts.py"),
        ("python", "deep.py"),
        ("env", "A=1", "python", "train.py"),
    ],
)
def test_it_is_found_wherever_the_command_leads(tmp_path: Path, argv: tuple[str, ...]) -> None:
    put(
        tmp_path,
        train_py=READS,
        pkg__mod_py=READS,
        pkg__main_py="",
        run_sh='#!/bin/bash\nHERE="$(dirname "$0")"\nexec python "$HERE/train.py" "$@"\n',
        start="#!/usr/bin/env bash\npython -m pkg.mod\n",
        outer_sh="sh run.sh\n",
        plain_py="import sys, train as t\n",
        parts_py="from pkg.mod import (where)\n",
        deep_py="from pkg import mod\n",
    )
    (tmp_path / "pkg" / "__main__.py").write_text("from .mod import where\n")
    assert asked(tmp_path, *argv)
    for path in tmp_path.rglob("*"):
        if path.is_file() and "OVERNIGHT_CHECKPOINT" in path.read_text():
            path.write_text("where = None\n")
    assert not asked(tmp_path, *argv)


@pytest.mark.parametrize(
    "text",
    [
        "# goes on from OVERNIGHT_CHECKPOINT\n",
        "x = 1  # OVERNIGHT_CHECKPOINT\n",
        '"""It does not read OVERNIGHT_CHECKPOINT."""\n',
        "    # from overnight.checkpoint import Checkpointer\nbroken (\n",
        "from overnight import __version__\n",
    ],
)
def test_what_only_mentions_it_does_not_count(tmp_path: Path, text: str) -> None:
    put(tmp_path, train_py=text, run_sh="# OVERNIGHT_CHECKPOINT\npython train.py\n")
    assert not asked(tmp_path, "python", "train.py")
    assert not asked(tmp_path, "sh", "run.sh")


@pytest.mark.parametrize(
    "text",
    [
        "from overnight.checkpoint import Checkpointer\n",
        "import overnight.checkpoint as oc\n",
        "from overnight import checkpoint\n",
        "print 'old'\nx = environ['OVERNIGHT_CHECKPOINT']\n",
        "path = '\\d'\n" + READS,
    ],
)
def test_the_library_and_what_is_no_python_of_today_count(tmp_path: Path, text: str) -> None:
    put(tmp_path, train_py=text)
    assert asked(tmp_path, "python", "train.py")


def test_imports_are_followed_one_level_and_only_to_files_of_the_project(tmp_path: Path) -> None:
    put(tmp_path, train_py="import os, json\nimport one\n", one_py="import two\n", two_py=READS)
    assert [os.path.basename(path) for path, _ in reached(("python", "train.py"), str(tmp_path))] == [
        "train.py",
        "one.py",
    ]
    assert not asked(tmp_path, "python", "train.py")


def test_pipes_circles_and_heaps_of_files_hold_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    put(tmp_path, a_sh="sh b.sh\npython pipe.py\n", b_sh="sh a.sh\n", train_py="import pipe\n")
    assert not asked(tmp_path, "sh", "a.sh")
    assert not asked(tmp_path, "python", "train.py", "pipe.py", "missing", "", "\0")
    many = [f"m{number}.py" for number in range(MOST_FILES + 5)]
    for name in many:
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / many[-1]).write_text(READS)
    assert len(list(reached(many, str(tmp_path)))) == MOST_FILES
    assert not asked(tmp_path, *many)


def test_the_text_of_a_program_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\0" * 64 + b"OVERNIGHT_CHECKPOINT")
    assert not asked(tmp_path, "python", "-c", "pass", "weights.bin")


def test_files_are_named_in_order_and_only_scripts_and_settings_are_searched_for_paths(tmp_path: Path) -> None:
    put(tmp_path, train_py="", a_sh="")
    (tmp_path / "conf.yaml").write_text("a: 1\n")
    (tmp_path / "data").write_text("1 2 3\n")
    (tmp_path / "my train.py").write_text("")
    words = ("python", "my train.py", "train.py", "--config=conf.yaml", "data", "train.py")
    assert [os.path.basename(path) for path in named(words, str(tmp_path))] == [
        "my train.py", "train.py", "conf.yaml", "data",
    ]  # fmt: skip
    assert [os.path.basename(path) for path in texts(words, str(tmp_path))] == [
        "my train.py", "train.py", "conf.yaml",
    ]  # fmt: skip


def asking(folder: Path, *argv: str) -> bool:
    return asks(RunSpec(name="r", argv=argv, executable="python", cwd=str(folder), log="l"))


READS_ORDER = """
import json, os
from pathlib import Path
def wanted():
    folder = os.environ.get("OVERNIGHT_RUN_DIR")
    order = Path(folder, "attempts", "001", "stop.json")
    return not order.exists() or json.loads(order.read_text())["save"]
"""


@pytest.mark.parametrize(
    "text",
    [
        READS_ORDER,
        READS_ORDER.replace('Path(folder, "attempts", "001", "stop.json")', 'Path(f"{folder}/attempts/001/stop.json")'),
        "from overnight.checkpoint import Checkpointer\n",
        "import overnight.checkpoint as oc\n",
        "from signals import save_wanted\nif save_wanted():\n    pass\n",
        "import signals\nsave = signals.save_wanted()\n",
        "print 'old'\n" + READS_ORDER,
    ],
)
def test_who_reads_the_order_to_stop_asks(tmp_path: Path, text: str) -> None:
    put(tmp_path, train_py=text)
    assert asking(tmp_path, "python", "train.py")
    assert asking(tmp_path, "python", "-c", text + "\n")


def test_who_reads_it_in_a_module_or_a_shell_script_asks(tmp_path: Path) -> None:
    put(tmp_path, train_py="import order\n", order_py=READS_ORDER)
    put(tmp_path, run_sh='grep -q false "$OVERNIGHT_RUN_DIR/attempts/001/stop.json"\n')
    assert asking(tmp_path, "python", "train.py")
    assert asking(tmp_path, "bash", "run.sh")


@pytest.mark.parametrize(
    "text",
    [
        "# looks into stop.json\n",
        "# OVERNIGHT_RUN_DIR stop.json save_wanted()\nbroken (\n",
        "import os\nfolder = os.environ['OVERNIGHT_RUN_DIR']\nhistory = folder + '/early_stop.json'\n",
        "folder = 'OVERNIGHT_RUN_DIR'\nx = 'stop.json.bak'\n",
        "folder = 'OVERNIGHT_RUN_DIR'\nx = 'nonstop.json'\n",
        "x = open('out/stop.json')\n",  # its own
        '"""It does not read stop.json of OVERNIGHT_RUN_DIR."""\n',
        "save_wanted = True\n",
        "# from overnight import checkpoint\n",
        "from overnight import __version__\n",
    ],
)
def test_who_only_mentions_it_does_not_ask(tmp_path: Path, text: str) -> None:
    put(tmp_path, train_py=text, run_sh="# $OVERNIGHT_RUN_DIR/stop.json\ncat $OVERNIGHT_RUN_DIR/early_stop.json\n")
    assert not asking(tmp_path, "python", "train.py")
    assert not asking(tmp_path, "bash", "run.sh")
