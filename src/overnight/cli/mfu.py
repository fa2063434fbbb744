"""The verb ``mfu``: a calculator of FLOPs and MFU that shows its working, by hand, for a run or for any log."""

from __future__ import annotations

import sys

from overnight.cli.look import as_json
from overnight.cli.parser import new_parser
from overnight.errors import UsageError
from overnight.events import jsonable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

    from overnight.calculator import Answer, Question
    from overnight.cli.parser import Parser

EXAMPLES = """\
  overnight mfu --params 124356864 --tokens-per-step 32768 --dt 0.25 \\
      --gpu a100 --dtype bf16
  overnight mfu --model Meta-Llama-3-8B --seq-len 8192 --gpu h100-sxm \\
      --dtype bf16 --tokens-per-second 10000  as every convention counts it
  overnight mfu --config ./config.json        only the counts
  overnight mfu --gpu h100-pcie --dtype bf16  only the peak
  overnight mfu quiet                         what the run quiet knows of itself
  overnight mfu train.log --config ./model --gpu a100 --dtype bf16
"""

IMPOSSIBLE = 2


def mfu(words: list[str]) -> int:
    """Work it out, and show how."""
    parser = _parser()
    args = parser.parse_args(words)
    from overnight.calculator.answer import answer

    question = _question(parser, args)
    try:
        found = answer(question)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if args.json:
        print(as_json(jsonable(found.plain())))
    else:
        from overnight.cli.mfupage import text

        print("\n".join(text(found)))
    return _verdict(found)


def _verdict(found: Answer) -> int:
    over = found.impossible
    if over is None:
        return 0
    sys.stdout.flush()
    sentence = f"this comes to {over.ratio:.2f} times what the hardware can do, so an input is wrong: {over.reasons[0]}"
    print(f"overnight: {sentence}", file=sys.stderr)
    return IMPOSSIBLE


def _parser() -> Parser:
    from overnight.accelerators import DTYPES
    from overnight.flops.conventions import CONVENTIONS

    parser = new_parser("mfu", EXAMPLES)
    parser.add_argument(
        "what", nargs="?", metavar="RUN|LOG", help="a run, the beginning of its name, or a log: what is not given by "
        "flags is taken from it (default: by hand; the latest run without any flag)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one object, full precision, null for unknown")
    model = parser.add_argument_group("the model")
    model.add_argument("--params", metavar="N", help="parameters: 124356864, 124M, 1.3B")
    model.add_argument("--config", metavar="FILE", help="count them: config.json, model folder or weights file")
    model.add_argument("--model", metavar="NAME", help="a public model by name: gpt2, Meta-Llama-3-8B")
    model.add_argument(
        "--nanogpt", metavar="SET", help="as nanoGPT sets it: 'n_layer=12 n_head=12 n_embd=768 block_size=1024 "
        "vocab_size=50304 bias=False'",
    )  # fmt: skip
    model.add_argument("--active-params", metavar="N", help="those that one token uses, of a mixture of experts")
    model.add_argument("--trainable-params", metavar="N", help="those that are trained; the others are frozen (LoRA)")
    for name, about in (
        ("layers", "layers"),
        ("width", "hidden size"),
        ("heads", "query heads"),
        ("head-size", "size of one head, where heads * size is not the width"),
        ("vocab-size", "vocabulary"),
    ):
        model.add_argument(f"--{name}", metavar="N", help=about)
    _add_speed(parser)
    device = parser.add_argument_group("the device, and how it is counted")
    device.add_argument(
        "--gpu", metavar="NAME", help="as its driver says it, or a key: h100-pcie; here: ask the driver"
    )
    device.add_argument("--dtype", metavar="D", help=f"what is computed in: {', '.join(DTYPES)}")
    device.add_argument("--peak-tflops", metavar="X", help="dense peak of one device, instead of the table's")
    keys = ", ".join(key for key, one in CONVENTIONS.items() if one.kind == "model")
    device.add_argument("--convention", metavar="KEY", help=f"how FLOPs are counted (default: 6n): {keys}")
    device.add_argument(
        "--recompute", metavar="HOW", help="what is computed again backward: none, selective, full. Counts for HFU only"
    )
    device.add_argument("--price", metavar="X/h", help="2.49/h: what all of it costs; gives the cost of tokens")
    return parser


def _add_speed(parser: Parser) -> None:
    speed = parser.add_argument_group("the speed")
    for flag, metavar, about in (
        ("--tokens-per-step", "N", "tokens of an optimizer step, all devices together"),
        ("--batch", "N", "or: sequences of a micro-step on one rank"),
        ("--seq-len", "N", "tokens of a sequence (the source's, with --target-len)"),
        ("--target-len", "N", "tokens of the target, of an encoder-decoder"),
        ("--accumulate", "N", "micro-steps of an optimizer step (default: 1)"),
        ("--world-size", "N", "data-parallel ranks (default: all devices)"),
        ("--dt", "TIME", "time of an optimizer step: 0.25, 250ms, 1m30s"),
        ("--tokens-per-second", "N", "of all devices together"),
    ):
        speed.add_argument(flag, metavar=metavar, help=about)
    speed.add_argument("--per-device", action="store_true", help="--tokens-per-second is of one device")
    speed.add_argument("--devices", metavar="N", help="devices that work (default: 1, or --world-size)")


# -- flags to values ---------------------------------------------------------------------------------------------------


def _question(parser: Parser, args: argparse.Namespace) -> Question:
    asked = _asked(args)
    if sum(name in asked for name in ("config", "model", "nanogpt")) > 1:
        parser.error("--config, --model and --nanogpt each say how large the model is: give one")
    if args.per_device and "tokens_per_second" not in asked:
        parser.error("--per-device goes with --tokens-per-second: tokens per step are of all devices together")
    if "tokens_per_second" in asked and "dt" in asked and not {"tokens_per_step", "batch"} & asked.keys():
        parser.error("--tokens-per-second needs no --dt; with --tokens-per-step beside them they are compared")
    from overnight.cli import mfusource

    if args.what is None and (asked or args.per_device):
        return mfusource.by_hand(asked, per_device=args.per_device)
    return mfusource.of_subject(args.what, asked, per_device=args.per_device)


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """Return what was given by flags, as values. UsageError for what is not accepted."""
    from overnight.options import _WHOLE, BY_NAME, path_text
    from overnight.quantities import RefusedError, price, text, tflops, tokens

    counts = (
        "params active_params trainable_params layers width heads head_size vocab_size batch seq_len target_len "
        "accumulate world_size devices"
    )
    parsers: dict[str, tuple[Callable[[object], Any], str]] = {
        **dict.fromkeys(counts.split(), (BY_NAME["params"].parse, _WHOLE)),
        "tokens_per_step": (tokens, _WHOLE),
        "tokens_per_second": (_rate, "a number above zero such as 131072 or 1.5M"),
        "dt": (_seconds, "the time of a step such as 0.25, 250ms or 1m30s"),
        "peak_tflops": (tflops, "a number above zero such as 312"),
        "price": (price, "a price such as 2.49/h or 60/day"),
        "config": (path_text, "a path"),
        **dict.fromkeys(("model", "nanogpt", "convention"), (text, "text")),
        "gpu": (text, "a name such as h100-pcie"),
        "dtype": (_dtype, "a dtype"),
        "recompute": (_recompute, "one of none, selective, full"),
    }
    found = {}
    for name, (parse, wants) in parsers.items():
        raw = getattr(args, name)
        if raw is None:
            continue
        try:
            found[name] = parse(raw)
        except _ToldError as error:
            raise UsageError(str(error)) from error
        except RefusedError as error:
            raise UsageError(f"--{name.replace('_', '-')} {raw!r} {error}: give {wants}") from error
        except (ValueError, OverflowError) as error:
            raise UsageError(f"--{name.replace('_', '-')} cannot be {raw!r}: give {wants}") from error
    return found


class _ToldError(ValueError):
    """A refusal that is a whole sentence."""


def _rate(raw: object) -> float:
    from overnight.quantities import LARGEST, LEAST, between, count, number

    try:
        value = number(raw)
    except ValueError:
        value = float(count(raw))
    return between(value, LEAST, LARGEST)


def _seconds(raw: object) -> float:
    from overnight.quantities import LEAST, MOST, between, duration_s, number

    written = str(raw).strip().lower()
    found = number(written.removesuffix("ms")) / 1000 if written.endswith("ms") else duration_s(written)
    return between(found, LEAST, MOST)


def _dtype(raw: object) -> str:
    from overnight.calculator.device import dtype_of

    try:
        return dtype_of(str(raw))
    except ValueError as error:
        raise _ToldError(str(error)) from error


def _recompute(raw: object) -> str:
    if raw not in ("none", "selective", "full"):
        raise ValueError(raw)
    return str(raw)
