"""What the status says live of a whole run and what the report counts afterwards are the same, on every recorded night.

They are two ways to one figure: one adds up line by line, the other goes through the history once all is known.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from overnight import cli
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

HERE = Path(__file__).parent
NIGHTS = sorted(path.parent.name for path in HERE.glob("*/output.log.xz"))
SEVERAL = {"run_restarts"}  # attempts of which a bare log does not tell where they begin
UNTIMED = {"objects"}


@pytest.mark.parametrize("name", [name for name in NIGHTS if name not in SEVERAL])
def test_live_and_afterwards(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(lzma.decompress((HERE / name / "output.log.xz").read_bytes()))
    spec = RunSpec(name="n", argv=("t",), executable="/bin/true", cwd="/", log=str(log))
    monitor = make_monitor(spec, pytest.fail)
    monitor.begin_attempt(1)
    monitor.feed(log.read_bytes(), 1.7e9)
    monitor.flush(1.7e9)
    assert cli.main(["report", str(log), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["goodput"]
    seconds, _, timed, _ = monitor.meter.pace.done()
    steps = monitor.meter.advance.steps_done
    assert steps == told["productive_steps"] > 0
    if name in UNTIMED:
        assert (timed, told["productive_s"]) == (0, None)
        return
    # Live an evaluation that lies inside a step time is left out where the log announces it.
    assert seconds * (steps / timed) == pytest.approx(told["productive_s"], rel=0.01)
