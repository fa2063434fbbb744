"""A loss that is no number any more, printed or hidden: every weight it touches is lost with the next optimizer step.

Hidden forms are a loss of exactly 0, a loss that is left out, and gradients that stay NaN or infinite. What finite
losses say about a run (spikes, collapse, divergence) is for other families.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Any, ClassVar, Final, NamedTuple

from overnight.batches import Batch
from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, milder, on_record, spoken, where
from overnight.spec import NonfiniteSignal

GRADIENTS: Final = 20
"""Records running: a loss scaler that starts at 2^32 leaves out 15 to 17 updates until it has found its scale."""

PATIENCE: Final = 3
"""Records running, where a single one may have a harmless reason."""

CARRIED: Final = 5
"""Records with a loss, and none without, after which its absence means something."""

_MOST_SERIES: Final = 64  # ranks times shapes of log; a memory must stay small, and one sick rank poisons all


class _Series(NamedTuple):
    """What the lines of one rank in one shape of log were like; ``norms``, ``zeros``, ``bare`` count lines running."""

    carried: int = 0  # lines with a loss, counted up to CARRIED; -1 when one came without before that
    nonzero: bool = False  # there was a loss other than 0
    zero: bool = False  # there was a loss of exactly 0 for another reason than a NaN
    proven: bool = False  # its gradient norm has been a number, or infinite: a NaN is no stand-in for "not known"
    norms: int = 0  # with a gradient norm that is NaN or infinite
    zeros: int = 0  # with a loss of exactly 0 beside a gradient norm of NaN
    bare: int = 0  # without a loss
    step: int | None = None

    @property
    def at_rest(self) -> bool:
        """Say whether a healthy line would change nothing here."""
        return self.carried in (-1, CARRIED) and not (self.norms or self.zeros or self.bare)


@dataclass(frozen=True, kw_only=True, slots=True)
class Nonfinite:
    """NaN or infinite training loss, on any rank: critical, by default ``terminate`` on that very line.

    There is no threshold and no patience. A healthy loss is never NaN; mixed-precision scalers skip a step with
    infinite *gradients*, but their loss before unscaling is finite. Waiting a second line only risks a checkpoint of
    ruined weights, which is why the default does not ask for a save.

    Hidden forms, equally critical: a loss of exactly 0 beside a gradient norm of NaN; a loss missing from lines that
    all carried it, at once beside a gradient norm of NaN and else on the third line running; a gradient norm of NaN
    or infinity on 20 records running. They do not kill healthy runs: single overflows, also the 17 of a scaler that
    looks for its scale, are fewer than 20. Where losses of 0 are usual, or nothing else was seen yet, a 0 must come
    three times running. Lines that sometimes have no loss, or say that the step was skipped, do not count as missing
    it. A gradient norm that was never anything but NaN beside a finite loss may stand for "not known": an alert.

    What does not end a run: a NaN of an evaluation (an empty eval set divides by zero; the weights are untouched) is an
    alert, a number that touches a neighbouring record is a note. A single NaN on a line that begins as no line before
    (a summary, a sample, a quoted log) is an alert; a second one on any line ends the run, if no training line with a
    number came between them: a real NaN stays. Each kind is told once per segment.
    ``signal`` is the first signal of the ladder for such an end; whoever ends the run reads it.
    """

    name: ClassVar[str] = "nonfinite"

    action: RuleAction = "terminate"
    signal: NonfiniteSignal = "auto"

    def fresh(self) -> Memory:
        """Return a memory in which nothing was told yet.

        ``calm`` names the shape of log whose healthy lines change nothing; a list under "reader rank" is a _Series.
        ``doubt``: the latest loss was no number, on a strange line.
        """
        return {"train": False, "eval": False, "glued": False, "strange": False, "doubt": False, "calm": ""}

    def __call__(self, record: Record, memory: Memory, /) -> Verdict | None:
        """Return a verdict for the first non-finite loss of each kind, and for the first of each hidden form."""
        loss, norm = record.loss, record.grad_norm
        # Nearly every line of a night ends here. A memory that was saved by an older version has no "calm".
        if (
            loss
            and -inf < loss < inf
            and (norm is None or -inf < norm < inf)
            and memory.get("calm") == record.reader
        ):  # fmt: skip
            return None
        if loss is not None and not isfinite(loss):
            return self._strange(record, loss, memory) if record.strange else self._printed(record, loss, memory)
        if record.kind != "train" or record.glued:
            return None
        if loss is not None:
            memory["doubt"] = False
        key = f"{record.reader} {record.rank}"
        if key not in memory and sum(isinstance(one, list) for one in memory.values()) >= _MOST_SERIES:
            return None
        series = _after(_Series(*memory.get(key, ())), record)
        memory[key] = list(series)
        rest = series.at_rest and all(_Series(*one).at_rest for one in memory.values() if isinstance(one, list))
        memory["calm"] = record.reader if rest else ""
        return self._hidden(record, series, memory)

    def calm(self, batch: Batch, memory: Memory, /) -> tuple[int, Memory]:
        """Return up to where healthy lines of a known shape change nothing."""
        if memory.get("calm") != batch.reader:
            return 0, {}
        norms = batch.columns.get("grad_norm")
        if norms is None or (min(norms) > -inf and max(norms) < inf):
            return len(batch), {}
        return next(place for place, norm in enumerate(norms) if not -inf < norm < inf), {}

    def _printed(self, record: Record, loss: float, memory: Memory) -> Verdict | None:
        """Return what a loss that is printed as NaN or infinite means on this line."""
        kind = "glued" if record.glued else record.kind
        if memory[kind]:
            return None
        memory[kind] = True
        evidence = {"loss": loss}
        if kind == "glued":
            text = f"loss reads {spoken(loss)} {where(record)}, but it touches another record and is not trusted"
            return on_record(self, record, text, severity="note", action="note", evidence=evidence)
        if kind == "eval":
            text = f"eval loss is {spoken(loss)} {where(record)}"
            return on_record(self, record, text, severity="warn", action=milder(self.action), evidence=evidence)
        return self._critical(record, f"loss is {spoken(loss)} {_place(record)}", evidence)

    def _strange(self, record: Record, loss: float, memory: Memory) -> Verdict | None:
        """Return what such a loss means on a line that begins as no line before it, or with a step long over."""
        evidence = {"loss": loss, "strange": True}
        text = f"loss reads {spoken(loss)} {where(record)}, on a line unlike all before it"
        if memory.get("doubt"):
            if memory["train"]:
                return None
            memory["train"] = True
            return self._critical(record, f"{text}, and no line with a number came since the one before", evidence)
        memory.update(doubt=True, calm="")  # so that the next number is seen
        if memory.get("strange") or memory["train"]:
            return None
        memory["strange"] = True
        if self.action in ("stop", "terminate", "rollback"):
            text += ": it is not trusted, a second one ends the run"
        return on_record(self, record, text, severity="warn", action=milder(self.action), evidence=evidence)

    def _hidden(self, record: Record, series: _Series, memory: Memory) -> Verdict | None:
        """Return the first hidden form that this line completes and that was not told yet."""
        norm = record.grad_norm
        evidence: dict[str, Any] = {"loss": record.loss, "grad_norm": norm}
        if series.zeros >= (PATIENCE if series.zero or not series.nonzero else 1) and not memory.get("zeros"):
            memory["zeros"] = True
            text = f"loss is exactly 0 beside a gradient norm of NaN {_place(record)}, which is how a hidden NaN looks"
            return self._critical(record, text, {**evidence, "records": series.zeros})
        ruined = series.bare > 0 and norm is not None and isnan(norm)
        if series.carried == CARRIED and series.bare >= (1 if ruined else PATIENCE) and not memory.get("bare"):
            memory["bare"] = True
            beside = " beside a gradient norm of NaN" if ruined else f", for {series.bare} lines running"
            text = f"loss is missing {_place(record)}{beside}; every line before had one, so a NaN may be hidden"
            return self._critical(record, text, {**evidence, "records": series.bare})
        if series.norms < GRADIENTS or norm is None or any(memory.get(form) for form in ("train", "zeros", "bare")):
            return None  # what was told already has the same cause
        evidence["records"] = series.norms
        text = f"gradient norm is {spoken(norm)} {_place(record)}"
        if series.proven and not memory.get("norms"):
            memory["norms"] = True
            text += f" and has been NaN or infinite for {series.norms} records running"
            return self._critical(record, text, evidence)
        if not series.proven and not memory.get("unproven"):
            memory["unproven"] = True
            text += f", as on all {series.norms} lines so far, while the loss is finite"
            return on_record(self, record, text, severity="warn", action=milder(self.action), evidence=evidence)
        return None

    def _critical(self, record: Record, text: str, evidence: dict[str, Any]) -> Verdict:
        if record.rank is not None:
            evidence = {**evidence, "rank": record.rank}
        return on_record(self, record, text, severity="critical", action=self.action, evidence=evidence)


def _after(series: _Series, record: Record) -> _Series:
    """Return ``series`` with one more line; of the lines that untagged ranks print for one step, only one counts."""
    loss, norm, step = record.loss, record.grad_norm, record.step
    more = 0 if step is not None and step == series.step else 1
    skipped = not loss and _skipped(record)
    finite = norm is not None and isfinite(norm)
    nan = norm is not None and isnan(norm)
    carried, norms, zeros, bare = series.carried, series.norms, series.zeros, series.bare
    if norm is not None:
        norms = 0 if finite else norms + more
    elif loss is not None:
        norms = 0
    if loss is None:
        if not skipped:
            bare += more
            carried = carried if carried == CARRIED else -1
    else:
        bare = 0
        zeros = zeros + more if nan and not loss and not skipped else 0
        carried = min(carried + 1, CARRIED) if carried >= 0 else carried
    return _Series(
        carried=carried,
        nonzero=series.nonzero or bool(loss),
        zero=series.zero or (loss == 0 and (skipped or not nan)),
        proven=series.proven or (norm is not None and not nan) or (loss is None and nan),
        norms=norms,
        zeros=zeros,
        bare=bare if carried == CARRIED else 0,
        step=series.step if step is None else step,
    )


def _skipped(record: Record) -> bool:
    """Say whether the line itself says that updates were left out: a loss scaler explains a loss that is not there."""
    fields = record.extra or {}
    return any("skipped" in name and isinstance(value, float) and value > 0 for name, value in fields.items())


def _place(record: Record) -> str:
    """Return the end of a sentence, with the rank where it is another than the one that is shown."""
    return f"{where(record)} on rank {record.rank}" if record.rank else where(record)
