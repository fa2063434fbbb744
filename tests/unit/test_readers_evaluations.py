"""Lines of evaluations and lines that only speak of a step: never records of training, whatever stands in front."""

from __future__ import annotations

import json
import math

import pytest

from overnight.events import Record
from overnight.readers.keyvalue import KeyValue
from overnight.tail import Line, Tail

PREFIXES = (
    *(
        "",
        "[rank0]: ",
        "2026-11-30 12:42:25,123 - train - INFO - ",
        "(TaskRunner pid=4242) ",
        "\x1b[36m(main, pid=7)\x1b[0m ",
    ),
    *("2026-11-30T12:42:25.123456789Z stdout F ", "2026-11-30T12:42:25.1Z stderr F ", "Mon Nov 30 12:42:25 UTC 2026 "),
    *(
        "Nov 30 12:42:25 box python3[4242]: ",
        "[     61.500] ",
        "trainer-1  | ",
        "INFO 2026-11-30 [MainProcess:42] ",
        "===> ",
    ),
)
"""What programs, launchers and collectors of logs print in front of a line; some of it is no prefix that is known."""


TRAINING = "step 4, loss 2.6\n"


def read(text: str) -> list[Record]:
    """Return the records of the last line of ``text``."""
    tail, reader = Tail(), KeyValue()
    lines = [*tail.feed(text.encode()), *tail.flush()]
    return [list(reader(line, 0.0, 0) or ()) for line in lines][-1]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "line",
    [
        *("Validation: step 5, loss: 2.5", "eval: step 5, loss 2.5", "Test: step 5, loss: 2.5", "dev: step=5 loss=2.5"),
        *(
            "test set: step 5, loss 2.5",
            "dev set step 5 loss 2.5",
            "held-out: step 5, loss 2.5",
            "holdout step 5 loss 2.5",
        ),
        *("Test | step 5 | loss 2.5", "step 5 | split=dev | loss: 2.5", "split=test step=5 loss=2.5"),
        *("step 5 loss 2.5 split=val", "step 5, loss: 2.5, phase: test", 'step=5 mode="eval" loss=2.5'),
    ],
)
def test_an_evaluation_is_one_behind_any_prefix(prefix: str, line: str) -> None:
    if line.startswith(("dev:", "held-out:", "holdout ")) and prefix.startswith(("Mon ", "[  ")):
        assert [record.kind for record in read(TRAINING + prefix + line)] == ["train"]  # it may be a logger's name
        return
    assert [(record.kind, record.step, record.loss) for record in read(TRAINING + prefix + line)] == [("eval", 5, 2.5)]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "line",
    [
        *("step 5, loss 2.5, split=train", "mode=train step 5 loss 2.5", "step 5, test_mode: off, loss: 2.5"),
        *("step 5, loss: 2.5, dev: cuda", "step 5 | loss: 2.5 | test acc: 0.5", "step 5, loss 2.5, val_loss: 2.7"),
    ],
)
def test_training_stays_training(prefix: str, line: str) -> None:
    assert [(record.kind, record.step, record.loss) for record in read(prefix + line)] == [("train", 5, 2.5)]


@pytest.mark.parametrize(
    "line", ["INFO:test:step 5 loss 2.5", "user@dev: step 5 loss 2.5", "/home/dev/x step 5 loss 2.5"]
)
def test_the_name_of_a_logger_or_a_machine_makes_no_evaluation(line: str) -> None:
    assert [record.kind for record in read(line)] == ["train"]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("field", ["epoch: 3", "lr: 0.1", "12.5 samples/s", "samples/sec: 12.5"])
def test_fields_before_the_step_are_read_behind_a_prefix_of_the_cluster(prefix: str, field: str) -> None:
    (record,) = read(f"{prefix}{field} | step: 5/90 | loss: 2.5")
    (bare,) = read(f"{field} | step: 5/90 | loss: 2.5")
    if "stdout" in prefix or "stderr" in prefix:
        assert (record.epoch, record.lr, record.samples_per_s) == (bare.epoch, bare.lr, bare.samples_per_s)
    assert (record.step, record.loss) == (5, 2.5)


@pytest.mark.parametrize(
    "line",
    [
        *("best: step 5, loss 2.5", "checkpoint-5: step=5, loss=2.5", "Early stopping at step 5, loss 2.5"),
        *("Stopping at step 5 loss 2.5", "Rolling back to step 5 loss 2.5", "rolled back to step 5, loss 2.5"),
        *("rollback to step 5, loss 2.5", "resumed: step 5, loss 2.5", "INFO: Best: step 5, loss 2.5"),
        *("sanity check step 5: loss 2.5", "dry run: step 5, loss 2.5", "Example output: step: 5, loss: 2.5"),
        *("denoising step 5/50: 3.2 it/s", "sampling step 5/50, 3 it/s", "generation step 5/50 | 3.2 it/s"),
        *('    loss = model(batch)["loss"]  # step 5, loss 2.5', "    x += 1  // now step 5, loss 2.5"),
    ],
)
def test_what_only_speaks_of_a_step_is_no_record(line: str) -> None:
    assert read(TRAINING + line) == []


@pytest.mark.parametrize("trained", ["", TRAINING])
@pytest.mark.parametrize(
    "line",
    [
        *("2026-01-01 10:00:00 INFO test: step: 5, loss: 2.5", "INFO test: step: 5, loss: 2.5"),
        *("[INFO] dev: step: 5, loss: 2.5", "[2026-01-01 10:00:00] test: step 5, loss: 2.5"),
        *("INFO: test: step 5, loss: 2.5", "INFO | test | step 5 | loss: 2.5", "10:00:00 dev | step 5 | loss: 2.5"),
        *("2026-01-01 test: step 5, loss: 2.5", "warning: dev: step 5, loss: 2.5", "INFO:test: step 5, loss: 2.5"),
        *("experiment: dev | step 5, loss 2.5", "env: dev | step: 5 | loss 2.5", "exp=test step=5 loss=2.5"),
        *("run=dev step=5 loss=2.5", "user=test | step 5 | loss 2.5", "branch: dev step: 5, loss: 2.5"),
        *("step: 5 | name=test | loss: 2.5", "exp = dev | step 5 | loss 2.5", "data_dir=dev: step 5, loss 2.5"),
        *("smoke test: step 5, loss 2.5", "A/B test: step 5, loss 2.5", "host dev | step 5 | loss 2.5"),
        *("Unit Test: step 5, loss 2.5", "my-test: step 5, loss 2.5", "web.dev | step 5 | loss 2.5"),
        *("held out 5% | step 5 | loss 2.5", "holdout_frac 0.1 | step 5 | loss 2.5", "held-out 10: step 5, loss 2.5"),
        *("stage=test-time step=5 loss=2.5", "step 5 | stage=test-time | loss 2.5", "mode=dev.fast step=5 loss=2.5"),
        *("Summary: step 5, loss 2.5", "training summary step: 5, loss: 2.5", "final: step 5, loss 2.5"),
        *("task summary | epoch 1 | step 5 | loss 2.5", "config: step 5, loss 2.5", "Stopping: step 5, loss 2.5"),
        *("early stopping patience 3 | step: 5 | loss: 2.5", "dry run | step 5 | loss 2.5"),
        *(
            "INFO:dry-run:step 5 loss 2.5",
            "sanity check on | step 5 | loss 2.5",
            "rollback window 9, step 5, loss: 2.5",
        ),
        *("sampling step 5, loss 2.5", "generation step 5, loss 2.5", "denoising step 5/50: loss 2.5"),
        *("denoiser step 5, loss 2.5", "Sampling: step 5 | loss 2.5", "data_loader: step 5, loss 2.5"),
        *("[trainer.py:120] # step: 5, loss: 2.5", "http://host/run # step: 5, loss: 2.5", "a=1  # step: 5, loss: 2.5"),
    ],
)
def test_a_healthy_line_is_training_with_and_without_another(trained: str, line: str) -> None:
    assert [(record.kind, record.step, record.loss) for record in read(trained + line)] == [("train", 5, 2.5)]


APART = (
    *("test: step: {n}, loss: {loss}", "dev | step {n} | loss {loss}", "held-out: step {n}, loss {loss}"),
    *("split=dev step={n} loss={loss}", "mode: dev | step: {n} | loss: {loss}", "step {n}, loss {loss}, stage: test"),
    *("best: step {n}, loss {loss}", "dry run: step {n}, loss {loss}", "rolled back to step {n}, loss {loss}"),
    *("resume: step: {n}, loss: {loss}", "sanity check step {n}: loss {loss}", "step: {n} (held-out), loss: {loss}"),
)


@pytest.mark.parametrize("line", APART)
def test_a_log_whose_every_line_begins_so_is_a_training(line: str) -> None:
    reader = KeyValue()
    for n in range(1, 30):
        (record,) = reader(Line(line.format(n=n, loss="nan" if n == 29 else n / 8), n), 0.0, 0) or ()
        assert (record.kind, record.step) == ("train", n)
    assert math.isnan(record.loss or 0.0)
    assert reader.snapshot() is None


@pytest.mark.parametrize("training", ["step: 9, loss: 2.0, dt: 0.5", "step 9 | loss 2.0", "INFO test: step 9, loss 2"])
@pytest.mark.parametrize("line", APART)
def test_beside_training_such_a_line_is_none_wherever_the_log_is_cut(training: str, line: str) -> None:
    """Whole, line by line with a new reader after each that goes on from the snapshot, and in blocks."""
    apart = line.format(n=9, loss=2.5)
    texts = [apart, training, apart, training, training, apart]
    whole, kinds, state = KeyValue(), [], None
    for number, text in enumerate(texts):
        reader = KeyValue()
        reader.restore(state)
        records = reader(Line(text, number), 0.0, 0)
        assert repr(records) == repr(whole(Line(text, number), 0.0, 0))
        state = json.loads(json.dumps(reader.snapshot()))
        kinds.append([record.kind for record in records or ()])
    other = [] if not kinds[2] else ["eval"]
    assert kinds == [["train"], ["train"], other, ["train"], ["train"], other]


def test_a_training_that_was_read_in_a_block_is_one() -> None:
    reader = KeyValue()
    block = b"".join(b"step: %d, loss: 2.0, dt: 0.5\n" % n for n in range(1, 9))
    assert reader.block(block, 0, 0, 0.0, 0) is not None
    assert [record.kind for record in reader(Line("Test: step 9, loss: 2.5", 0), 0.0, 0) or ()] == ["eval"]
