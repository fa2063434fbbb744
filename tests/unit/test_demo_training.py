"""The demo's training is real: right gradients, a right AdamW, and checkpoints that resume to the bit."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="the demo's training needs numpy: pip install 'overnight[demo]'")

from overnight.demo import model, saves, train  # noqa: E402 - they import numpy

SMALL = model.Shape(context=3, embedding=4, hidden=5, vocabulary=7, tokens_per_step=6, dropout=0.3)


def small_problem() -> tuple[model.Arrays, model.Array, model.Array, tuple[model.Array, model.Array]]:
    rng = np.random.default_rng(3)
    weights = model.initial_weights(SMALL, seed=4, dtype=np.float64)
    weights["w3"] *= 30  # as it starts, the last layer is too small to tell a wrong gradient from a right one
    for name in ("b1", "b2", "b3"):
        weights[name] += rng.standard_normal(weights[name].shape)  # at 0 a silenced row would sit on ReLU's kink
    x = rng.integers(0, SMALL.vocabulary, (SMALL.tokens_per_step, SMALL.context))
    y = rng.integers(0, SMALL.vocabulary, SMALL.tokens_per_step)
    return weights, x, y, model.dropout_masks(rng, SMALL, np.float64)


@pytest.mark.parametrize("name", ["embedding", "w1", "b1", "w2", "b2", "w3", "b3"])
def test_every_gradient_equals_finite_differences(name: str) -> None:
    weights, x, y, masks = small_problem()
    _, gradients = model.loss_and_gradients(weights, x, y, masks)
    assert set(gradients) == set(weights)
    assert np.abs(gradients[name]).max() > 1e-3
    h = 1e-6
    for index in np.ndindex(weights[name].shape):
        kept = weights[name][index]
        losses = []
        for value in (kept + h, kept - h):
            weights[name][index] = value
            losses.append(model.loss_and_gradients(weights, x, y, masks)[0])
        weights[name][index] = kept
        assert gradients[name][index] == pytest.approx((losses[0] - losses[1]) / (2 * h), rel=1e-5, abs=1e-8)


def test_loss_is_the_cross_entropy() -> None:
    weights, x, y, masks = small_problem()
    weights["w3"][:] = 0
    weights["b3"][:] = np.log([1, 2, 3, 4, 5, 6, 7])
    loss, _ = model.loss_and_gradients(weights, x, y, masks)
    assert loss == pytest.approx(-np.log((y + 1) / 28).mean())


def test_adamw_by_hand() -> None:
    optimizer = model.AdamW(horizon=100, peak_lr=0.1, warmup=1, beta1=0.8, beta2=0.9, epsilon=0.0, decay=0.5, clip=5.0)
    weights = {"w": np.array([[2.0]]), "b": np.array([1.0])}
    m = {name: np.zeros_like(array) for name, array in weights.items()}
    v = {name: np.zeros_like(array) for name, array in weights.items()}
    gradients = {"w": np.array([[6.0]]), "b": np.array([8.0])}
    assert optimizer.update(1, weights, gradients, m, v) == 10.0
    # Clipped by half to 3 and 4; after bias correction m_hat / sqrt(v_hat) is the sign; only the matrix decays.
    assert m["w"][0, 0] == pytest.approx(0.2 * 3)
    assert v["b"][0] == pytest.approx(0.1 * 16)
    assert weights["b"][0] == pytest.approx(1 - 0.1)
    assert weights["w"][0, 0] == pytest.approx(2 - 0.1 * 0.5 * 2 - 0.1)


def test_adamw_equals_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    rng = np.random.default_rng(5)
    optimizer = model.AdamW(horizon=40, clip=math.inf)
    weights = {"w": rng.standard_normal((3, 4))}
    m, v = {"w": np.zeros((3, 4))}, {"w": np.zeros((3, 4))}
    theirs = torch.nn.Parameter(torch.tensor(weights["w"]))
    reference = torch.optim.AdamW(
        [theirs], betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.epsilon, weight_decay=optimizer.decay
    )
    for step in range(1, 41):
        gradient = rng.standard_normal((3, 4))
        reference.param_groups[0]["lr"] = optimizer.lr(step)
        theirs.grad = torch.tensor(gradient)
        reference.step()
        optimizer.update(step, weights, {"w": gradient}, m, v)
    np.testing.assert_allclose(weights["w"], theirs.detach().numpy(), rtol=1e-12)


def test_schedule_warms_up_and_comes_down() -> None:
    optimizer = model.AdamW(horizon=200)
    rates = [optimizer.lr(step) for step in range(1, 260)]
    assert rates[0] == pytest.approx(optimizer.peak_lr / optimizer.warmup)
    assert max(rates) == rates[optimizer.warmup - 1] == optimizer.peak_lr
    assert rates[199] == rates[-1] == pytest.approx(optimizer.peak_lr / 10)


@pytest.fixture(scope="module")
def text() -> model.Array:
    return train.read_text(50_000)


def trainer(text: model.Array) -> train.Trainer:
    return train.Trainer(seed=7, horizon=60, text=text)


def hashes(of: train.Trainer) -> list[str]:
    return [model.digest(part) for part in (of.weights, of.m, of.v)]


def test_training_learns(text: model.Array) -> None:
    runner = trainer(text)
    losses = [float(runner.advance()[0]) for _ in range(60)]
    assert losses[0] == pytest.approx(math.log(model.VOCABULARY), abs=0.1)
    assert losses[-1] < 3.5


def test_resume_equals_the_unbroken_run_bit_for_bit(text: model.Array, tmp_path: Path) -> None:
    unbroken = trainer(text)
    losses = [unbroken.advance() for _ in range(14)]
    first = trainer(text)
    assert [first.advance() for _ in range(6)] == losses[:6]
    saves.save(tmp_path, first.state())
    second = trainer(text)
    train.resume(second, tmp_path)
    assert second.step == 6
    assert [second.advance() for _ in range(8)] == losses[6:]
    assert hashes(second) == hashes(unbroken)
    assert second.rng.bit_generator.state == unbroken.rng.bit_generator.state


def test_resume_without_the_dropout_state_is_seen(text: model.Array) -> None:
    """The test above can fail: one part of the state left out, and the bits differ."""
    unbroken, broken = trainer(text), trainer(text)
    for runner in (unbroken, broken):
        runner.advance()
    broken.rng = np.random.default_rng(0)
    assert unbroken.advance() != broken.advance()


def test_newest_whole_checkpoint_is_taken(
    text: model.Array, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = trainer(text)
    for _ in range(5):
        runner.advance()
        saves.save(tmp_path, runner.state())
    assert saves.steps_saved(tmp_path) == [5, 4, 3]
    whole = saves.path_of(tmp_path, 5).read_bytes()
    saves.path_of(tmp_path, 5).write_bytes(whole[: len(whole) // 2])
    damaged = bytearray(saves.path_of(tmp_path, 4).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    saves.path_of(tmp_path, 4).write_bytes(damaged)
    (tmp_path / ".checkpoint-000006.npz.1.tmp").write_bytes(whole[:100])
    fresh = trainer(text)
    train.resume(fresh, tmp_path)
    assert fresh.step == 3
    said = capsys.readouterr().out
    assert "skipped: checkpoint-000005.npz" in said
    assert "skipped: checkpoint-000004.npz" in said
    assert "resumed from checkpoint-000003.npz" in said
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [f"checkpoint-00000{n}.npz" for n in (3, 4, 5)]


def test_checkpoint_of_another_model_is_passed_over(text: model.Array, tmp_path: Path) -> None:
    other = train.Trainer(seed=7, horizon=60, text=text, shape=SMALL)
    saves.save(tmp_path, other.state())
    fresh = trainer(text)
    train.resume(fresh, tmp_path)
    assert fresh.step == 0


class SignalledTrainer(train.Trainer):
    """Gets its signal in the middle of step 5."""

    stop: train.Stop

    def advance(self) -> tuple[str, float]:
        """Take one step, and be signalled in it."""
        result = super().advance()
        if self.step == 5:
            self.stop.note(signal.SIGTERM, None)
        return result


@pytest.mark.parametrize("save", [None, True, False])
def test_signal_finishes_the_step_and_saves_unless_told_not_to(
    save: bool | None,
    text: model.Array,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    attempt = tmp_path / "run" / "attempts" / "002"
    attempt.mkdir(parents=True)
    if save is not None:
        (attempt / "stop.json").write_text(json.dumps({"cause": "nonfinite", "save": save, "at": 1.0}))
    monkeypatch.setenv("OVERNIGHT_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OVERNIGHT_ATTEMPT", "2")
    runner = SignalledTrainer(seed=7, horizon=60, text=text)
    runner.stop = train.Stop()
    options = train.parser().parse_args(
        ["--steps", "50", "--save-every", "3", "--checkpoints", str(tmp_path / "saved")]
    )
    train.train(runner, options, runner.stop)
    assert saves.steps_saved(tmp_path / "saved") == ([3] if save is False else [5, 3])
    printed = capsys.readouterr().out
    assert printed.count("step: ") == 5
    assert "SIGTERM came" in printed


def test_poison_is_real(text: model.Array, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = trainer(text)
    options = train.parser().parse_args(
        ["--steps", "4", "--save-every", "2", "--nan-at", "3", "--checkpoints", str(tmp_path)]
    )
    train.train(runner, options, train.Stop())
    losses = [
        line.split("loss: ")[1].split(",")[0] for line in capsys.readouterr().out.splitlines() if "loss: " in line
    ]
    assert [loss == "nan" for loss in losses] == [False, False, True, True]
    assert all(np.isfinite(array).all() for array in saves.load(saves.path_of(tmp_path, 2)).weights.values())
    assert np.isnan(saves.load(saves.path_of(tmp_path, 4)).weights["w2"]).all()


def test_text_is_plain_and_long_enough() -> None:
    text = train.read_text()
    assert len(text) >= 1_000_000
    assert text.max() < model.VOCABULARY
    assert b"import" in text[:100_000].tobytes()
