"""The verb ``verify-resume``: its flags, what is shown meanwhile, and how it ends. The proof itself is ``resumeproof``.

Nothing is started or compared here.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time

from overnight.cli.parser import INTERRUPTED, new_parser
from overnight.errors import OvernightError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overnight.cli.parser import Parser
    from overnight.resumeproof.breaks import Breaks
    from overnight.resumeproof.evidence import Proof
    from overnight.resumeproof.parts import Question
    from overnight.resumeproof.proving import Proving
    from overnight.resumeproof.untouched import Fingerprint
    from overnight.resumeproof.workcopy import Workplace

EXAMPLES = """\
  overnight verify-resume -- python train.py
  overnight verify-resume --stop-at 40 --until 60 -- python train.py
  overnight verify-resume --resume-args '--resume {checkpoint}' -- \\
      python train.py --out {workdir}/out
  overnight verify-resume --tolerance 1e-3 --json -- python train.py | jq .

runs the command unbroken twice, once stopped and started again, once killed
and started again, each in a working copy; exits 0 if what follows the stop is
the same as without it, 1 if not, 2 if the proof is refused
"""

DEFAULT_COPY, DEFAULT_TIMEOUT = "2G", "1h"
PASSED, FAILED = 0, 1
BROKEN = "broken off by Ctrl-C"
SHOWN_LINES = 12


def verify_resume(words: list[str]) -> int:
    """Prove that a training resumes exactly, or say where it does not."""
    args, command = _parsed(words)
    from overnight.resumeproof.breaks import Breaks

    with Breaks() as breaks:
        verb = _Verb(args, command, breaks)
        try:
            return verb.run()
        except KeyboardInterrupt:
            return verb.broken()  # while the result was written


class _Verb:
    """One call of the verb."""

    def __init__(self, args: argparse.Namespace, command: list[str], breaks: Breaks) -> None:
        from overnight.cli.verifypage import Progress

        self.args, self.command, self.breaks = args, tuple(command), breaks
        self.evidence: str | None = None
        self.proving: Proving | None = None
        self.workplace: Workplace | None = None
        self.before: Fingerprint | None = None
        self.passed: bool | None = None
        self.progress = Progress(sys.stderr, quiet=args.quiet)

    def run(self) -> int:
        """Carry it out; return the exit code."""
        changed, refused, broken = None, None, False
        try:
            try:
                self._carry_out()
            except OvernightError as error:
                refused = str(error)
                code = error.exit_code
            changed = self._changed()
        except KeyboardInterrupt:
            refused, code, broken, self.passed = BROKEN, INTERRUPTED, True, None
        with self.breaks.held():
            if changed is None:  # another Ctrl-C cuts nothing short
                changed = self._changed()
            proof = self._proof(changed=changed, refused=refused)
            self._show(proof, broken=broken)
        if refused is None:
            return PASSED if proof.passed else FAILED
        return self.broken() if broken else code

    def broken(self) -> int:
        """Say that it was broken off, and what there is; return the exit code."""
        from overnight.printable import harmless

        where = f"; what is known so far is in {harmless(self.evidence)}" if self.evidence else ""
        print(f"\novernight: broken off: no run of the proof goes on{where}", file=sys.stderr)
        return INTERRUPTED

    def _carry_out(self) -> None:
        """Do the runs and compare them; what is known is in the fields of this object, whatever happens."""
        from overnight import client
        from overnight.resumeproof import untouched
        from overnight.resumeproof.proving import Proving, evidence_home, steps_of

        home, here = client.find_home(), os.getcwd()
        utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        wanted = os.path.abspath(self.args.evidence or _unused(os.path.join(home, "proofs", f"resume-{utc}")))
        try:
            steps_of(self.args.stop_at, self.args.until)
            question = self._question(home, wanted)
            self.workplace = self._workplace(question, here, skip=(wanted, home))
            self.before = untouched.fingerprint(here, saves=_named_saves(self.command), skip=(wanted, home))
            self.evidence = evidence_home(wanted)
            self.workplace.__enter__()  # and left below, where no second Ctrl-C can reach
            self.proving = Proving(question, self.workplace, self.breaks, self.progress)
            self.passed = self.proving.prove()
        finally:
            with self.breaks.held():
                self.progress.end()
                if self.workplace is not None:
                    self.workplace.close()

    def _changed(self) -> tuple[str, ...] | None:
        """Return what of the user's files has changed; None if they were not looked at before."""
        from overnight.resumeproof import untouched

        return None if self.before is None else tuple(untouched.changes(self.before))

    # -- what is asked -----------------------------------------------------------------------------------------------

    def _question(self, home: str, evidence: str) -> Question:
        from overnight import launch, settings
        from overnight.resumeproof.parts import Question
        from overnight.resumeproof.trial import Asked

        names = ("pattern", "stop_signal", "grace", "resume_args", "line_buffered")
        flags = {name: getattr(self.args, name, None) for name in names}
        spec = settings.resolve(flags, self.command, home=home, environ=launch.user_environment()).spec
        return Question(
            asked=Asked(
                home=evidence,
                checkpoints=self.args.checkpoints,
                pattern=spec.pattern,
                line_buffered=spec.line_buffered,
                stop_signal=spec.stop_signal,
                grace_s=spec.grace_s,
                grace_max_s=spec.grace_max_s,
                timeout_s=self.args.timeout,
            ),
            until=self.args.until,
            stop_at=self.args.stop_at,
            resume_args=spec.resume_args,
            tolerance=self.args.tolerance,
        )

    def _workplace(self, question: Question, here: str, *, skip: tuple[str, ...]) -> Workplace:
        from overnight import launch
        from overnight.resumeproof.workcopy import Workplace

        return Workplace(
            self.command,
            cwd=here,
            environ=launch.user_environment(),
            resume_args=question.resume_args,
            leave_out=self.args.leave_out or (),
            allow=self.args.allow or (),
            skip=skip,
            max_copy=self.args.max_copy,
            keep=self.args.keep,
        )

    # -- what is told ------------------------------------------------------------------------------------------------

    def _proof(self, *, changed: tuple[str, ...] | None, refused: str | None) -> Proof:
        from overnight.resumeproof.evidence import Proof

        proving, passed = self.proving, self.passed
        variants = () if proving is None else tuple(proving.variants)
        own = () if proving is None else tuple(proving.parts.notes)
        places = () if self.workplace is None else tuple(self.workplace.notes)
        files = () if self.before is None else tuple(self.before.notes())
        said = (*own, *(one for variant in variants for one in variant.notes), *places, *files)
        return Proof(
            command=self.command,
            evidence=self.evidence,
            passed=False if changed and passed is not None else passed,
            until=self.args.until if proving is None else proving.parts.until,
            stop_at=self.args.stop_at if proving is None else proving.parts.stop_at,
            parts=() if proving is None else tuple(proving.parts.told),
            variants=variants,
            floor={name: value for one in reversed(variants) for name, value in one.floor.items()},
            left_out={name: why for one in reversed(variants) for name, why in one.left_out.items()},
            notes=tuple(dict.fromkeys(said)),
            untouched=None if changed is None else not changed,
            changed=changed or (),
            refused=refused,
        )

    def _show(self, proof: Proof, *, broken: bool) -> None:
        from overnight.cli import verifypage
        from overnight.cli.terminal import colours
        from overnight.printable import harmless
        from overnight.resumeproof import evidence

        for said in evidence.keep(proof, verifypage.proof_text(proof)):
            print(f"overnight: {harmless(said)}", file=sys.stderr)
        if self.args.json:
            from overnight.cli.look import as_json

            print(as_json(evidence.document(proof)))
        elif proof.refused is None:
            print(verifypage.proof_text(proof, colours=colours()))
        if proof.refused is None:
            return
        for line in verifypage.changes_text(proof):
            print(f"overnight: {line}", file=sys.stderr)
        if broken:
            return
        lines = () if self.proving is None else self.proving.parts.lines
        for line in lines[-SHOWN_LINES:]:
            print(f"  | {harmless(line)}", file=sys.stderr)
        print(f"overnight: {harmless(proof.refused)}", file=sys.stderr)
        if self.evidence is not None and proof.parts:
            print(f"overnight: what was run is in {harmless(self.evidence)}", file=sys.stderr)


def _named_saves(command: tuple[str, ...]) -> list[str]:
    """Return the checkpoints that a command names by their whole paths: they are looked at before and after, too."""
    from overnight.saves.names import looks_like_save

    paths = (word.rpartition("=")[2] for word in command)
    return [path for path in paths if os.path.isabs(path) and looks_like_save(path) and os.path.exists(path)]


# -- flags -----------------------------------------------------------------------------------------------------------


def _parsed(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = _parser()
    at = words.index("--") if "--" in words else len(words)
    options: list[str] = []
    for word in words[:at]:
        # argparse would take `--resume` behind it for a flag of ours
        if options and options[-1] == "--resume-args" and word.startswith("-"):
            options[-1] += f"={word}"
        else:
            options.append(word)
    args, stray = parser.parse_known_args(options)
    if at == len(words) and args.stray:
        said = shlex.join(args.stray)
        parser.error(f"put `--` before the command: overnight verify-resume [options] -- {said} ...")
    if stray or args.stray:
        parser.error(f"unrecognized arguments: {' '.join(stray or args.stray)}")
    command = words[at + 1 :]
    if not command:
        parser.error("no command after `--`: write it there, as in `overnight verify-resume -- python train.py`")
    return args, command


def _parser() -> Parser:
    parser = new_parser("verify-resume", EXAMPLES)
    parser.usage = "overnight verify-resume [options] -- COMMAND..."
    add = parser.add_argument
    add("stray", nargs="*", help=argparse.SUPPRESS)
    add("--stop-at", metavar="N", type=_step, help="stop and kill at this step (default: 100)")
    add("--until", metavar="N", type=_step, help="compare up to this step (default: 10 steps after the stop)")
    about = "words added to the command when it is started again; {checkpoint} is where to go on from"
    add("--resume-args", metavar="'ARGS'", help=about)
    about = "auto: as far as two unbroken runs differ; exact; or a relative difference such as 1e-3 (default: auto)"
    add("--tolerance", metavar="auto|exact|X", type=_tolerance, help=about)
    files = parser.add_argument_group("files")
    add = files.add_argument
    add("--checkpoints", metavar="DIR", type=_relative, help="where the script saves, within its working copy")
    add(
        "--max-copy",
        metavar="SIZE",
        type=_size,
        default=_size(DEFAULT_COPY),
        help=f"copy so much (default: {DEFAULT_COPY})",
    )
    add("--leave-out", metavar="GLOB", action="append", help="do not copy what is called so; repeatable")
    add("--allow", metavar="DIR", action="append", help="a folder that every run may write to; repeatable")
    about = "folder for runs, series and result (default: in proofs of OVERNIGHT_HOME)"
    add("--evidence", metavar="DIR", help=about)
    add("--keep", action="store_true", help="keep the working copies")
    runs = parser.add_argument_group("the runs")
    add = runs.add_argument
    add("--pattern", metavar="REGEX", help="regular expression with named groups that reads a progress line")
    add(
        "--timeout",
        metavar="TIME",
        type=_time,
        default=_time(DEFAULT_TIMEOUT),
        help=f"for each run (default: {DEFAULT_TIMEOUT})",
    )
    add("--stop-signal", metavar="auto|int|term", help="first signal of the stop (default: auto)")
    add("--grace", metavar="TIME", help="time from the first signal to SIGKILL (default: 60s)")
    add("--json", action="store_true", help="print the whole result as one object")
    add("--quiet", action="store_true", help="show no progress")
    return parser


def _step(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no step; give a whole number from 1 on")
    return int(text)


def _tolerance(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        found = 0.0 if text == "exact" else float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is none; give auto, exact, or a number below 1 such as 1e-3")
    return found


def _relative(text: str) -> str:
    inside = os.path.normpath(text.removeprefix("{workdir}").lstrip("/")) if "{workdir}" in text else text
    if not text or os.path.isabs(inside) or os.path.normpath(inside).split("/")[0] == "..":
        raise argparse.ArgumentTypeError(f"{text!r} does not lie in the working copy; give a path relative to it")
    return inside


def _size(text: str) -> int:
    from overnight.quantities import quoted, whole

    try:
        return whole(text.strip().removesuffix("B") if len(text) > 1 else text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no size; give one such as 2G or 500M") from None


def _time(text: str) -> float:
    from overnight.quantities import duration_s, quoted

    try:
        return duration_s(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no time; give one such as 10m or 2h") from None


def _unused(path: str) -> str:
    """Return the path, with a number behind it if another proof of the same second has it."""
    found, number = path, 2
    while os.path.lexists(found):
        found, number = f"{path}-{number}", number + 1
    return found
