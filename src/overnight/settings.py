"""From flags, environment and files to one frozen RunSpec, and where each value came from.

Nothing is started or written here; files are only read, to learn what is asked and whether it can be done. A refusal
is one sentence that names the setting, where it was given and what is accepted.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overnight.errors import UsageError
from overnight.folder import check_name
from overnight.options import ACTIONS, BY_NAME, LIMITS, NOT_SETTINGS, RULES, SETTINGS, TABLES, actions_of
from overnight.places import check_text, checked_log, find_executable, made_up_name
from overnight.quantities import RefusedError, epoch_of, quoted
from overnight.spec import RunSpec
from overnight.yardsticks import given as yardsticks

PLACES = re.compile(r"(?<!\$)\{(\w+)\}")

NOT_ASKED = {
    **dict.fromkeys(("max_hours", "until", "max_steps", "max_cost", "pattern"), "none"),
    "checkpoints": "the working folder",
    "stall": "learned from the run",
    "start_limit": "none, an alert after 30 min",
    "exit_limit": "as a stall",
    "price_table": "none",
    "gpu": "what the driver says",
    "world_size": "all devices",
    "accumulate": "1",
    **dict.fromkeys(("config", "model"), "none"),
}
"""What a setting without a value means, where that is not "unknown"."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The spec, where every setting came from, what only ``run`` itself needs, and warnings worth a line on stderr."""

    spec: RunSpec
    origins: dict[str, str]
    settle_s: float
    warnings: tuple[str, ...]
    values: dict[str, Any]


def resolve(
    flags: Mapping[str, object],
    argv: Sequence[str],
    *,
    home: str | Path,
    environ: Mapping[str, str] = os.environ,
    cwd: str | Path | None = None,
    now: float | None = None,
) -> Resolved:
    """Return one frozen spec from flags > environment > project file > user file > defaults.

    ``flags`` maps setting names to raw values (None: not given; "action": a list of RULE=ACTION). ``argv`` may be empty
    when only the settings are to be shown; ``now`` (seconds since the epoch) is what ``until 07:30`` counts from.
    UsageError, one sentence, for anything that cannot be done as asked.
    """
    here = str(cwd) if cwd is not None else os.getcwd()
    warnings: list[str] = []
    asked: dict[str, tuple[object, str]] = {}
    for layer in (_user_file(environ), _project_file(here, warnings), _environment(environ, warnings), _flags(flags)):
        asked.update(layer)
    values, origins = _parse(asked)
    _reconcile(values, origins)
    _date(values, origins, time.time() if now is None else now)
    warnings += _idle(values, origins)
    _place(values, origins, str(home), here, warnings)
    derived, more = yardsticks.derive(values, origins, here)
    warnings += [*more, *yardsticks.unused(values, origins)]
    if values["line_buffered"] and shutil.which("stdbuf", path=environ.get("PATH", os.defpath)) is None:
        raise UsageError(
            f"line-buffered ({origins['line_buffered']}) needs the program stdbuf (coreutils), which is not on PATH; "
            f"install it or do without line-buffered"
        )
    for position, word in enumerate((*argv, here, values["log"], values["checkpoints"] or "")):
        check_text(word, position, len(argv))
    spec = RunSpec(
        argv=tuple(argv),
        executable=find_executable(argv[0], environ.get("PATH"), here) if argv else "",
        cwd=here,
        actions={rule: values[f"action_{rule}"] for rule in RULES if values[f"action_{rule}"] is not None},
        **{one.field: values[one.name] for one in SETTINGS if one.field in RunSpec.__struct_fields__},
        **derived,
    )
    return Resolved(spec=spec, origins=origins, settle_s=values["settle"], warnings=tuple(warnings), values=values)


def explain(resolved: Resolved) -> Iterator[tuple[str, str, str]]:
    """Yield (setting, value, origin) for every setting, for ``run --explain``."""
    for setting in SETTINGS:
        value, origin = resolved.values[setting.name], resolved.origins[setting.name]
        shown = NOT_ASKED.get(setting.name, "unknown") if value is None else _shown(value)
        if value is not None and setting.metavar == "TIME":
            shown = f"{value:g} s"
        if value is not None and setting.name == "until":
            shown = time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(value))
        if value is None and setting.name.startswith("action_"):
            shown = "the rule's own"
        if value is None and setting.name == "max_loss":
            derived, why = resolved.spec.loss_limit(), "a language model: --vocab-size or --tokens-per-step is given"
            shown = "none" if derived is None else f"{derived:g} ({why})"
        yield setting.name.replace("_", "-"), shown, origin


def _shown(value: object) -> str:
    """Return a value as it might have been written: true, 524288 rather than True, 524288.0."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "; ".join(value) or "none"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# -- the layers, each setting name -> (raw value, origin) ------------------------------------------------------------

Layer = dict[str, tuple[object, str]]


def _flags(flags: Mapping[str, object]) -> Layer:
    found: Layer = {}
    for name, raw in flags.items():
        if raw is None:
            continue
        if name == "action":
            found.update(_action_words(raw, "flag --action"))
        else:
            found[name] = (raw, f"flag {BY_NAME[name].flag}")
    return found


def _environment(environ: Mapping[str, str], warnings: list[str]) -> Layer:
    found: Layer = {}
    for full in sorted(environ):
        short = full.removeprefix("OVERNIGHT_")
        if short == full or short in NOT_SETTINGS or not environ[full]:
            continue
        if short == "ACTION":
            found.update(_action_words(environ[full].split(","), full))
        elif short.lower() in BY_NAME and short.isupper():
            found[short.lower()] = (environ[full], full)
        else:
            near = _near(short.lower(), BY_NAME)
            hint = f"; did you mean OVERNIGHT_{near.upper()}?" if near else ""
            warnings.append(f"{full} is no setting and is ignored{hint}")
    return found


def _project_file(here: str, warnings: list[str]) -> Layer:
    own, shared = os.path.join(here, "overnight.toml"), os.path.join(here, "pyproject.toml")
    table = _load(own)
    text = _text(shared)
    # Somebody's pyproject.toml that does not speak of us is none of our business, not even when it is broken.
    tool = _load(shared).get("tool") if text is not None and b"overnight" in text else None
    ours = tool.get("overnight") if isinstance(tool, dict) else None
    if os.path.lexists(own):
        if ours is not None:
            warnings.append(f"[tool.overnight] in {shared} is not read: {own} comes first")
        return _file_layer(table, own)
    if ours is None:
        return {}
    if not isinstance(ours, dict):
        raise UsageError(f"tool.overnight in {shared} must be a table")
    return _file_layer(ours, shared)


def _user_file(environ: Mapping[str, str]) -> Layer:
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(base, "overnight", "config.toml")
    return _file_layer(_load(path), path)


def _text(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _load(path: str) -> dict[str, Any]:
    text = _text(path)
    if text is None:
        return {}
    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error


def _file_layer(table: dict[str, Any], path: str) -> Layer:
    found: Layer = {}

    def put(name: str, key: str, raw: object) -> None:
        if name in found:
            raise UsageError(f"{key} is given twice in {path}; keep one of the two")
        found[name] = (raw, path)

    for key, raw in table.items():
        name = key.replace("-", "_")
        if name == "rules":
            for target, spelled, value in _rule_tables(raw, path):
                put(target, spelled, value)
        elif name == "action":
            for target, (value, _) in _action_words(raw, path).items():
                put(target, key, value)
        elif name in BY_NAME:
            put(name, key, raw)
        else:
            raise UsageError(_unknown(key, path, [*BY_NAME, "rules", "action"], name))
    return found


def _rule_tables(raw: object, path: str) -> Iterator[tuple[str, str, object]]:
    if not isinstance(raw, dict):
        raise UsageError(f"rules in {path} must be tables such as [rules.nonfinite]")
    for rule, table in raw.items():
        name = rule.replace("-", "_")
        if name not in TABLES:
            raise UsageError(_unknown(f"rules.{rule}", path, [f"rules.{one}" for one in TABLES], f"rules.{name}"))
        if not isinstance(table, dict):
            raise UsageError(f"rules.{rule} in {path} must be a table [rules.{rule}]")
        for key, value in table.items():
            target = TABLES[name].get(key.replace("-", "_"))
            if target is None:
                raise UsageError(_unknown(f"rules.{rule}.{key}", path, [f"rules.{rule}.{one}" for one in TABLES[name]]))
            yield target, f"rules.{rule}.{key}", value


def _unknown(key: str, path: str, known: Sequence[str], wanted: str | None = None) -> str:
    near = _near(wanted or key, known)
    hint = f"did you mean {near}?" if near else "`overnight run --help` lists the settings"
    return f"{key} in {path} is no setting; {hint}"


def _near(word: str, known: Sequence[str] | Mapping[str, object]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def _action_words(raw: object, origin: str) -> Layer:
    words = [raw] if isinstance(raw, str) else raw
    if not isinstance(words, (list, tuple)):
        raise UsageError(f"action ({origin}) must be RULE=ACTION such as nonfinite=stop")
    found: Layer = {}
    for word in words:
        name, action = rule_action(word, origin)
        found[f"action_{name}"] = (action, origin)
    return found


def rule_action(word: object, origin: str) -> tuple[str, str]:
    """Return (rule, action) of RULE=ACTION; UsageError, with what may have been meant, for anything else."""
    rule, equals, action = (part.strip() for part in str(word).partition("="))
    name = rule.replace("-", "_")
    if equals and name and action in ACTIONS and name not in RULES:
        near = _near(name, RULES)
        hint = f"did you mean {near}?" if near else f"rules are {', '.join(RULES)}"
        raise UsageError(f"action {str(word)!r} ({origin}): there is no rule {name!r}; {hint}")
    if equals and name in RULES and action in ACTIONS and action not in actions_of(name):
        what = "a limit that is reached" if name in LIMITS else "what the machine does"
        raise UsageError(
            f"action {str(word)!r} ({origin}): {what} is no trouble to go back before; "
            f"its actions are {', '.join(actions_of(name))}"
        )
    if not equals or name not in RULES or action not in ACTIONS:
        raise UsageError(
            f"action {str(word)!r} ({origin}) is not RULE=ACTION: rules are {', '.join(RULES)}; "
            f"actions are {', '.join(ACTIONS)}"
        )
    return name, action


# -- from raw values to values ---------------------------------------------------------------------------------------


def _parse(asked: Layer) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in SETTINGS:
        if setting.name not in asked:
            values[setting.name], origins[setting.name] = setting.default, "default"
            continue
        raw, origin = asked[setting.name]
        try:
            values[setting.name] = setting.parse(raw)
        except RefusedError as error:
            raise UsageError(f"{setting.label} {quoted(raw)} ({origin}) {error}") from error
        except (ValueError, KeyError, OverflowError) as error:
            raise UsageError(f"{setting.label} cannot be {quoted(raw)} ({origin}): give {setting.wants}") from error
        origins[setting.name] = origin
    return values, origins


def _reconcile(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Bring settings in line that only make sense together."""
    if values["max_cost"] is not None and values["price"] is None and values["price_table"] is None:
        raise UsageError(
            f"max-cost ({origins['max_cost']}) needs what the machine costs: add --price, such as --price 2.49/h"
        )
    for word in values["resume_args"]:
        for name in PLACES.findall(word):
            if name != "checkpoint" and difflib.get_close_matches(name.lower(), ["checkpoint"], cutoff=0.6):
                raise UsageError(
                    f"resume-args ({origins['resume_args']}) have {{{name}}}, which stands for nothing; "
                    f"did you mean {{checkpoint}}?"
                )
    if values["grace"] <= values["grace_max"]:
        return
    if origins["grace_max"] == "default":
        values["grace_max"], origins["grace_max"] = values["grace"], "as long as grace"
        return
    raise UsageError(
        f"grace ({values['grace']:g} s, {origins['grace']}) is longer than grace-max "
        f"({values['grace_max']:g} s, {origins['grace_max']}); lower the one or raise the other"
    )


def _idle(values: dict[str, Any], origins: dict[str, str]) -> Iterator[str]:
    """Yield a warning for each setting that does nothing without another one that was not given."""
    back = any(values[f"action_{rule}"] == "rollback" for rule in RULES)
    again = bool(values["restarts"]) or values["recover"] or back
    needs = {
        "exit_limit": (values["steps"] is not None, "--steps: without the plan nobody knows the last step"),
        "resume_args": (again, "--restarts, --recover or a rollback: the command is never started a second time"),
        "backoff": (bool(values["restarts"]) or back, "--restarts: there is nothing to wait for"),
        "rollbacks": (back, "a rule whose action is rollback, such as --action spike=rollback"),
        "rollback_steps": (back, "a rule whose action is rollback, such as --action spike=rollback"),
    }
    for name, (given, what) in needs.items():
        if origins[name] != "default" and not given:
            yield f"{name.replace('_', '-')} ({origins[name]}) does nothing without {what}"


def _date(values: dict[str, Any], origins: dict[str, str], now: float) -> None:
    """Turn the time of day at which the run is to be over into the moment when it next comes."""
    if values["until"] is None:
        return
    try:
        values["until"] = epoch_of(values["until"], now)
    except RefusedError as error:
        raise UsageError(f"until {values['until']} ({origins['until']}) {error}; give a later one") from error


def _place(values: dict[str, Any], origins: dict[str, str], home: str, here: str, warnings: list[str]) -> None:
    """Fill in what has to be a place on this machine: name, log, checkpoints."""
    if values["name"] is None:
        values["name"], origins["name"] = made_up_name(home), "made up"
    check_name(values["name"])
    if values["log"] is None:
        values["log"] = os.path.join(home, "runs", values["name"], "output.log")
    else:
        values["log"] = checked_log(os.path.join(here, values["log"]), origins["log"])
    if values["checkpoints"] is not None:
        folder = os.path.join(here, values["checkpoints"])
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise UsageError(f"checkpoints ({origins['checkpoints']}): {folder} is not a folder")
        if not os.path.lexists(folder):  # the script may make it; if not, somebody has misspelt it
            asked = f"checkpoints ({origins['checkpoints']})"
            warnings.append(f"{asked}: {folder} does not exist yet; no save is seen until the script makes it")
        values["checkpoints"] = os.path.normpath(folder)
