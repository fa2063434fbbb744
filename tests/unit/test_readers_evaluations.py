"""Lines of evaluations and lines that only speak of a step: never records of training, whatever stands in front."""

from __future__ import annotations

import pytest

from overnight.events import Record
from overnight.readers.keyvalue import KeyValue
from overnight.tail import Tail

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


def read(text: str) -> list[Record]:
    tail, reader = Tail(), KeyValue()
    return [record for line in [*tail.feed(text.encode()), *tail.flush()] for record in reader(line, 0.0, 0) or ()]


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
    assert [(record.kind, record.step, record.loss) for record in read(prefix + line)] == [("eval", 5, 2.5)]


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
        *("Stopping: step 5 loss 2.5", "Rolling back to step 5 loss 2.5", "rollback to step 5, loss 2.5"),
        *(
            "Summary: step 5, loss: 2.5",
            "Final: step 5, loss 2.5",
            "config: step: 5, loss: 2.5",
            "resumed: step 5, loss 2.5",
        ),
        *("sanity check step 5: loss 2.5", "dry run: step 5, loss 2.5", "Example output: step: 5, loss: 2.5"),
        *("denoising step 5/50: loss 2.5", "sampling step 5/50 loss 2.5, 3 it/s", "generation step 5/50 | 3.2 it/s"),
        *('    loss = model(batch)["loss"]  # step 5, loss 2.5', "    x += 1  // now step 5, loss 2.5"),
    ],
)
def test_what_only_speaks_of_a_step_is_no_record(line: str) -> None:
    assert read(line) == []
