"""The demo's model: a character model whose gradients and whose AdamW are written out by hand, in numpy.

Pure arithmetic on arrays: no clock, no file, no signal, no printing. Randomness comes in as an argument, so that the
same state gives the same bits. Training in the demo is float32; a test checks the gradients in float64.

The model looks at the last ``context`` characters and guesses the next one (Bengio et al., 2003):

    x [B, C] -> embedding [B, C*E] -> ReLU(. W1 + b1) -> dropout -> ReLU(. W2 + b2) -> dropout -> . W3 + b3 [B, V]
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]

VOCABULARY = 128
"""Characters are bytes; the few above ASCII in the text all become 127."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of the model and of a batch; ``tokens_per_step`` characters are predicted in each step."""

    context: int = 16
    embedding: int = 24
    hidden: int = 256
    vocabulary: int = VOCABULARY
    tokens_per_step: int = 256
    dropout: float = 0.1

    @property
    def matmul_parameters(self) -> int:
        """Weights that are multiplied once per token: what the 6 N FLOPs per token of a training step count."""
        return self.hidden * (self.context * self.embedding + self.hidden + self.vocabulary)


def initial_weights(shape: Shape, seed: int, dtype: DTypeLike = np.float32) -> Arrays:
    """Return fresh weights by name: He scaling for the ReLU layers, the last one small: the loss starts at ln V."""
    rng = np.random.default_rng([seed, 0])
    wide = shape.context * shape.embedding

    def normal(rows: int, columns: int, scale: float) -> Array:
        return (rng.standard_normal((rows, columns)) * scale).astype(dtype)

    return {
        "embedding": normal(shape.vocabulary, shape.embedding, 1.0),
        "w1": normal(wide, shape.hidden, math.sqrt(2 / wide)),
        "b1": np.zeros(shape.hidden, dtype),
        "w2": normal(shape.hidden, shape.hidden, math.sqrt(2 / shape.hidden)),
        "b2": np.zeros(shape.hidden, dtype),
        "w3": normal(shape.hidden, shape.vocabulary, 0.01),
        "b3": np.zeros(shape.vocabulary, dtype),
    }


def batch(text: Array, shape: Shape, seed: int, step: int) -> tuple[Array, Array]:
    """Return the windows [B, context] and next characters [B] of one step: a function of seed and step alone.

    Because nothing is carried from step to step, a resumed run sees the same data as an unbroken one.
    """
    rng = np.random.default_rng([seed, 1, step])
    starts = rng.integers(0, len(text) - shape.context, shape.tokens_per_step)
    windows = text[starts[:, None] + np.arange(shape.context + 1)]
    return windows[:, :-1], windows[:, -1]


def dropout_masks(rng: np.random.Generator, shape: Shape, dtype: DTypeLike = np.float32) -> tuple[Array, Array]:
    """Return the masks of both hidden layers [B, hidden], scaled by 1 / (1 - p); this advances ``rng``."""
    keep = 1 - shape.dropout
    size = (shape.tokens_per_step, shape.hidden)
    first = (rng.random(size, np.float32) < keep).astype(dtype)
    second = (rng.random(size, np.float32) < keep).astype(dtype)
    return first / keep, second / keep


def loss_and_gradients(weights: Arrays, x: Array, y: Array, masks: tuple[Array, Array]) -> tuple[Any, Arrays]:
    """Return the mean cross-entropy in nats (a numpy scalar of the weights' dtype) and its gradient for each weight."""
    rows = np.arange(len(y))
    embedded = weights["embedding"][x].reshape(len(y), -1)
    h1 = np.maximum(embedded @ weights["w1"] + weights["b1"], 0) * masks[0]
    h2 = np.maximum(h1 @ weights["w2"] + weights["b2"], 0) * masks[1]
    logits = h2 @ weights["w3"] + weights["b3"]
    logits -= logits.max(axis=1, keepdims=True)
    exponents = np.exp(logits)
    sums = exponents.sum(axis=1, keepdims=True)
    loss = (np.log(sums[:, 0]) - logits[rows, y]).mean()

    d_logits = exponents / sums
    d_logits[rows, y] -= 1
    d_logits /= len(y)
    # A unit that ReLU or dropout silenced is 0 in h and passes nothing back.
    d_h2 = (d_logits @ weights["w3"].T) * masks[1] * (h2 > 0)
    d_h1 = (d_h2 @ weights["w2"].T) * masks[0] * (h1 > 0)
    d_embedded = (d_h1 @ weights["w1"].T).reshape(*x.shape, -1)
    gradients = {
        "w1": embedded.T @ d_h1,
        "b1": d_h1.sum(axis=0),
        "w2": h1.T @ d_h2,
        "b2": d_h2.sum(axis=0),
        "w3": h2.T @ d_logits,
        "b3": d_logits.sum(axis=0),
        "embedding": _gather(x, d_embedded, weights["embedding"]),
    }
    return loss, gradients


def _gather(x: Array, d_embedded: Array, table: Array) -> Array:
    """Return the table's gradient: each character's rows summed. One-hot times rows is 20 times faster than add.at."""
    one_hot = (np.arange(len(table))[:, None] == x.reshape(-1)).astype(table.dtype)
    summed: Array = one_hot @ d_embedded.reshape(x.size, -1)
    return summed


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW (Loshchilov and Hutter, 2019) with the global gradient norm clipped; a cosine schedule after a warm-up.

    ``horizon`` is the step at which the cosine has come down to a tenth of ``peak_lr``.
    """

    horizon: int
    peak_lr: float = 3e-3
    warmup: int = 20
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    decay: float = 0.01
    clip: float = 1.0

    def lr(self, step: int) -> float:
        """Return the learning rate of a step; the first step is 1."""
        if step <= self.warmup:
            return self.peak_lr * step / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.horizon - self.warmup))
        return self.peak_lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))

    def update(self, step: int, weights: Arrays, gradients: Arrays, m: Arrays, v: Arrays) -> float:
        """Change weights and moments in place; return the gradient's norm before clipping."""
        norm = math.sqrt(sum(float(np.vdot(gradients[name], gradients[name])) for name in weights))
        scale = 1.0 if norm <= self.clip else self.clip / norm
        lr = self.lr(step)
        for name, weight in weights.items():
            gradient = gradients[name] * scale
            m[name] *= self.beta1
            m[name] += (1 - self.beta1) * gradient
            v[name] *= self.beta2
            v[name] += (1 - self.beta2) * gradient * gradient
            m_hat = m[name] / (1 - self.beta1**step)
            v_hat = v[name] / (1 - self.beta2**step)
            if weight.ndim > 1:  # biases are not decayed
                weights[name] *= 1 - lr * self.decay
            weights[name] -= lr * m_hat / (np.sqrt(v_hat) + self.epsilon)
        return norm


def digest(weights: Arrays) -> str:
    """Return the SHA-256 of all weights, names and bytes: equal only if every bit is."""
    sha = hashlib.sha256()
    for name in sorted(weights):
        sha.update(name.encode())
        sha.update(np.ascontiguousarray(weights[name]).tobytes())
    return sha.hexdigest()
