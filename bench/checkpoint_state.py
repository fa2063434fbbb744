"""What the savers are given, and what trains beside them. No saver is known here.

The state is that of GPT-2 124M: its 148 tensors in their true shapes and AdamW's two moments of each, 1.49 GB of
float32 (the head is tied to the embedding and is not stored twice). What trains is a smaller transformer on all cores,
so that there are many steps while one checkpoint is written.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import nn

WIDTH, WORDS, CONTEXT, LAYERS = 768, 50257, 1024, 12


def shapes(size: float) -> dict[str, tuple[int, ...]]:
    """Return GPT-2's tensors by name; ``size`` 1 is the true one, less makes it narrower with fewer words."""
    width = WIDTH if size == 1 else max(64, round(WIDTH * math.sqrt(size) / 64) * 64)
    words = WORDS if size == 1 else max(64, round(WORDS * math.sqrt(size)))
    found: dict[str, tuple[int, ...]] = {"wte.weight": (words, width), "wpe.weight": (CONTEXT, width)}
    for layer in range(LAYERS):
        for name, shape in {
            "ln_1.weight": (width,),
            "ln_1.bias": (width,),
            "attn.c_attn.weight": (width, 3 * width),
            "attn.c_attn.bias": (3 * width,),
            "attn.c_proj.weight": (width, width),
            "attn.c_proj.bias": (width,),
            "ln_2.weight": (width,),
            "ln_2.bias": (width,),
            "mlp.c_fc.weight": (width, 4 * width),
            "mlp.c_fc.bias": (4 * width,),
            "mlp.c_proj.weight": (4 * width, width),
            "mlp.c_proj.bias": (width,),
        }.items():
            found[f"h.{layer}.{name}"] = shape
    return {**found, "ln_f.weight": (width,), "ln_f.bias": (width,)}


class State:
    """The model and its optimizer, as a trainer holds them. Each tensor has values of its own."""

    def __init__(self, size: float) -> None:
        self.model = nn.Module()
        for name, shape in shapes(size).items():
            *path, last = name.split(".")
            node = self.model
            for part in path:
                if part not in dict(node.named_children()):
                    node.add_module(part, nn.Module())
                node = node.get_submodule(part)
            node.register_parameter(last, nn.Parameter(torch.rand(shape)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for one in self.model.parameters():
            self.optimizer.state[one] = {
                "step": torch.tensor(1000.0),
                "exp_avg": torch.rand(one.shape),
                "exp_avg_sq": torch.rand(one.shape),
            }
        self.parameters = sum(one.numel() for one in self.model.parameters())

    @property
    def size(self) -> int:
        """Bytes of the model and the two moments."""
        return 3 * 4 * self.parameters

    def dict(self) -> dict[str, Any]:
        """Return what a trainer hands over: live tensors, not copies."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Put a state that was read into the model and the optimizer."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors, in one order."""
        return self._ordered(self.dict())

    def fill(self, state: dict[str, Any]) -> None:
        """Copy a state that was read into the tensors that are there: for one that is mapped and not read yet."""
        with torch.no_grad():
            for own, one in zip(self.tensors(), self._ordered(state), strict=True):
                own.copy_(one)

    @staticmethod
    def _ordered(state: dict[str, Any]) -> list[torch.Tensor]:
        kept = state["optimizer"]["state"]
        moments = [kept[at][name] for at in sorted(kept) for name in ("step", "exp_avg", "exp_avg_sq")]
        return [state["model"][name] for name in sorted(state["model"])] + moments

    def sums(self) -> list[float]:
        """Return a number for each tensor, to see whether what was loaded is what was saved."""
        return [float(one.double().sum()) for one in self.tensors()]


class Training:
    """A transformer that really trains, on all cores."""

    def __init__(self) -> None:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.model = nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 256))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batch = torch.rand(8, 64, 256)

    def step(self) -> float:
        """Take one step; return its seconds."""
        began = time.monotonic()
        self.optimizer.zero_grad()
        loss = (self.model(self.batch) - self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        if not math.isfinite(loss.item()):
            raise RuntimeError("the training beside the savers has gone astray")
        return time.monotonic() - began

    def steps(self, seconds: float) -> list[float]:
        """Train for some seconds; return those of each step, five at least."""
        until, taken = time.monotonic() + seconds, []
        while time.monotonic() < until or len(taken) < 5:
            taken.append(self.step())
        return taken
