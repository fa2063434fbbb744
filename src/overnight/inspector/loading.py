"""What torch's own loading will say of a file once it is needed: which ones it refuses as more than plain states.

Pure: findings in, sentences out.
"""

from __future__ import annotations

from collections.abc import Iterable

from overnight.inspector.findings import Found

ALLOWED = ("torch.", "torch_", "collections.OrderedDict", "collections.Counter", "_codecs.encode", "builtins.")
"""What torch's weights-only loading may import, roughly: some of these it refuses still."""


def refused_by_weights_only(parts: Iterable[tuple[str, Found]]) -> list[str]:
    """Return a note for each file of plain states that torch's weights-only loading refuses, and for what."""
    notes = []
    for name, found in parts:
        strange = [one for one in found.globals if not one.startswith(ALLOWED)]
        if strange:
            kind = "numpy objects" if all(one.startswith("numpy.") for one in strange) else f"objects of {strange[0]}"
            notes.append(
                f"{name} holds {kind}: torch.load refuses it with weights_only=True, its default since torch 2.6"
            )
    return notes
