"""Reads a pickle without running anything of it: what it would import, call and hold, as plain values.

A stack machine over the opcodes of protocols 0 to 5. It imports nothing and calls nothing: a global becomes a Symbol, a
call becomes a Call. No file, no torch, no meaning of names enters here; whoever reads the values gives them one.

Bounded: bytes, opcodes, and so objects and time. Depth costs nothing, for nothing here recurses.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from overnight.inspector.symbols import Call, Opaque, Persistent, Symbol, TooLarge, Unreadable, key_of

LARGEST = 64 << 20
"""Bytes of a pickle that are read at most."""
MOST = 2_000_000
"""Opcodes that are read at most, which is about 2 s and 200 MB."""
MOST_KEPT = 10_000  # names of globals that are listed
LONGEST_NAME = 1_000  # characters of a module and its global
LONGEST_NUMBER = 5_000  # digits of a number in words


@dataclass(frozen=True, kw_only=True)
class Pickled:
    """What was read: the value, the globals in order, and the number of bytes up to the end of the pickle."""

    value: Any
    globals: tuple[str, ...]
    size: int


class _Mark:
    __slots__ = ()


_MARK = _Mark()
_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg", "cPickle": "pickle"}
_DICTS = ("collections.OrderedDict", "collections.defaultdict", "builtins.dict")


def read(data: bytes | memoryview, *, most: int = MOST) -> Pickled:
    """Return what a pickle holds. Unreadable: no pickle, or not whole; TooLarge: LARGEST bytes or ``most`` opcodes."""
    if len(data) > LARGEST:
        raise TooLarge(f"a pickle of {len(data):,} bytes is longer than what is read, {LARGEST:,}")
    machine = _Machine(bytes(data))
    try:
        return machine.run(most)
    except (IndexError, struct.error):
        raise Unreadable(f"the pickle ends or breaks at byte {machine.at:,}") from None
    except (ValueError, TypeError, AttributeError, OverflowError):  # int() of words, an item of what has none
        raise Unreadable(f"the pickle makes no sense at byte {machine.at:,}") from None


@dataclass(slots=True)
class _Machine:
    data: bytes
    at: int = 0
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    globals: dict[str, None] = field(default_factory=dict)
    copied: int = 0

    def run(self, most: int) -> Pickled:
        data, table = self.data, _TABLE
        for _ in range(most):
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                value = self.pop()
                return Pickled(value=value, globals=tuple(self.globals), size=self.at)
            act = table[code]
            if act is None:
                raise Unreadable(f"no opcode of a pickle: byte {self.at - 1:,}")
            act(self)
        raise TooLarge(f"the pickle has more than {most:,} opcodes")

    def take(self, size: int) -> bytes:
        """The next bytes of the input; never more than there are, whatever the pickle claims."""
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise Unreadable(f"the pickle claims {size:,} bytes at byte {self.at:,}, and has fewer")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self, form: str, size: int) -> Any:
        return struct.unpack(form, self.take(size))[0]

    def copies(self, count: int) -> None:
        """Count what is copied from one value into another: the same million may be copied by each of many opcodes."""
        self.copied += count
        if self.copied > MOST:
            raise TooLarge(f"the pickle copies more than {MOST:,} values")

    def digits(self) -> bytes:
        """A line that is a number."""
        text = self.line()
        if len(text) > LONGEST_NUMBER:
            raise Unreadable(f"the pickle has a number of {len(text):,} digits at byte {self.at:,}")
        return text

    def line(self) -> bytes:
        end = self.data.index(b"\n", self.at)
        return self.take(end + 1 - self.at)[:-1]

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise Unreadable(f"the pickle takes from an empty stack at byte {self.at:,}")
        return value

    def marked(self) -> list[Any]:
        """All that lies above the last mark; it and the mark are taken away."""
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise Unreadable(f"the pickle has no mark at byte {self.at:,}")
        found = stack[at + 1 :]
        del stack[at:]
        return found

    def top(self) -> Any:
        value = self.stack[-1]
        if value is _MARK:
            raise Unreadable(f"the pickle takes from an empty stack at byte {self.at:,}")
        return value

    def symbol(self, module: str, name: str) -> Symbol:
        if len(module) + len(name) > LONGEST_NAME:
            raise Unreadable(f"the pickle names a global with {len(module) + len(name):,} characters")
        module = _OLD_MODULES.get(module, module)
        full = f"{module}.{name}".replace("numpy._core.", "numpy.core.")
        if len(self.globals) < MOST_KEPT:
            self.globals[full] = None
        return Symbol(full)

    def remember(self, at: int) -> None:
        self.memo[at] = self.top()

    def recall(self, at: int) -> None:
        if at not in self.memo:
            raise Unreadable(f"the pickle recalls what it never held, at byte {self.at:,}")
        self.stack.append(self.memo[at])

    def put(self, target: Any, pairs: Iterator[tuple[Any, Any]]) -> None:
        if isinstance(target, Call):
            if target.items is None:
                target.items = {}
            target = target.items
        elif type(target) is not dict:
            raise Unreadable(f"the pickle puts items where none can be, at byte {self.at:,}")
        for key, value in pairs:
            target[key_of(key)] = value

    def extend(self, target: Any, values: list[Any]) -> None:
        if isinstance(target, Call):
            if target.more is None:
                target.more = []
            target = target.more
        elif type(target) is not list:
            raise Unreadable(f"the pickle appends to what is no list, at byte {self.at:,}")
        target.extend(values)


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _made(m: _Machine, function: Any, args: Any) -> Any:
    """What calling it would make, or rather what says so. Dicts of known kinds are dicts."""
    if not isinstance(function, Symbol):
        return Call("", (function, args))
    name = function.name
    if name in _DICTS:
        made: dict[Any, Any] = {}
        pairs: list[Any] | tuple[()] = (
            args[0] if name != _DICTS[1] and type(args) is tuple and args and type(args[0]) is list else ()
        )
        m.copies(len(pairs))
        for pair in pairs:  # protocols 0 and 1 give an OrderedDict its items this way
            if type(pair) in (list, tuple) and len(pair) == 2:
                made[key_of(pair[0])] = pair[1]
        return made
    indirect = name in ("copyreg._reconstructor", "copyreg.__newobj__") and type(args) is tuple and args
    if indirect and isinstance(args[0], Symbol):
        m.copies(len(args))
        return {} if args[0].name in _DICTS else Call(args[0].name, args[1:])
    return Call(name, args)


def _reduce(m: _Machine) -> None:
    args = m.pop()
    m.stack.append(_made(m, m.pop(), args))


def _new_ex(m: _Machine) -> None:
    named, args = m.pop(), m.pop()
    made = _made(m, m.pop(), args)
    if isinstance(made, Call) and type(named) is dict and named:
        made.state = named
    m.stack.append(made)


def _build(m: _Machine) -> None:
    state, target = m.pop(), m.top()
    if isinstance(target, Call):
        target.state = state if target.state is None else (target.state, state)


def _global(m: _Machine) -> None:
    module = m.line().decode("utf-8", "replace")
    m.stack.append(m.symbol(module, m.line().decode("utf-8", "replace")))


def _stack_global(m: _Machine) -> None:
    name, module = m.pop(), m.pop()
    if type(name) is not str or type(module) is not str:
        raise Unreadable(f"the pickle names a global by what is no word, at byte {m.at:,}")
    m.stack.append(m.symbol(module, name))


def _inst(m: _Machine) -> None:
    _global(m)
    made = m.pop()
    m.stack.append(_made(m, made, tuple(m.marked())))


def _obj(m: _Machine) -> None:
    function, *args = m.marked()
    m.stack.append(_made(m, function, tuple(args)))


def _setitem(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    m.put(m.top(), iter(((key, value),)))


def _setitems(m: _Machine) -> None:
    flat = m.marked()
    m.put(m.top(), _pairs(flat))


def _dict(m: _Machine) -> None:
    flat = m.marked()
    m.stack.append({})
    m.put(m.top(), _pairs(flat))


def _append(m: _Machine) -> None:
    value = m.pop()
    m.extend(m.top(), [value])


def _appends(m: _Machine) -> None:
    values = m.marked()
    m.extend(m.top(), values)


def _tuple_of(size: int) -> Callable[[_Machine], None]:
    def act(m: _Machine) -> None:
        values = [m.pop() for _ in range(size)]
        m.stack.append(tuple(reversed(values)))

    return act


def _pop(m: _Machine) -> None:
    m.stack.pop()


def _integer(m: _Machine) -> None:
    text = m.digits()
    m.stack.append({b"00": False, b"01": True}.get(text) if text in (b"00", b"01") else int(text))


def _string(m: _Machine) -> None:
    text = m.line().strip()
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
        raise Unreadable(f"the pickle has a word without quotes at byte {m.at:,}")
    plain: bytes = codecs.escape_decode(text[1:-1])[0]
    m.stack.append(plain.decode("latin-1"))


def _long(m: _Machine, size: int) -> None:
    m.stack.append(int.from_bytes(m.take(size), "little", signed=True))


def _word(m: _Machine, size: int) -> None:
    m.stack.append(m.take(size).decode("utf-8", "surrogatepass"))


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(make(m))


def _frame(m: _Machine) -> None:
    size = m.number("<Q", 8)
    if size > len(m.data) - m.at:
        raise Unreadable(f"the pickle has a frame that is longer than the rest, at byte {m.at:,}")


def _nothing(m: _Machine) -> None:  # READONLY_BUFFER changes no content
    m.top()


_ACTS: dict[str, Callable[[_Machine], None]] = {
    "(": _push(lambda _: _MARK),
    "0": _pop,
    "1": lambda m: m.marked().clear(),
    "2": _push(lambda m: m.top()),
    "N": _push(lambda _: None),
    "\x88": _push(lambda _: True),
    "\x89": _push(lambda _: False),
    "I": _integer,
    "J": _push(lambda m: m.number("<i", 4)),
    "K": _push(lambda m: m.number("B", 1)),
    "M": _push(lambda m: m.number("<H", 2)),
    "L": _push(lambda m: int(m.digits().rstrip(b"L"))),
    "\x8a": lambda m: _long(m, m.number("B", 1)),
    "\x8b": lambda m: _long(m, m.number("<i", 4)),
    "F": _push(lambda m: float(m.digits())),
    "G": _push(lambda m: m.number(">d", 8)),
    "S": _string,
    "T": _push(lambda m: m.take(m.number("<i", 4)).decode("latin-1")),
    "U": _push(lambda m: m.take(m.number("B", 1)).decode("latin-1")),
    "B": _push(lambda m: m.take(m.number("<I", 4))),
    "C": _push(lambda m: m.take(m.number("B", 1))),
    "\x8e": _push(lambda m: m.take(m.number("<Q", 8))),
    "\x96": _push(lambda m: m.take(m.number("<Q", 8))),
    "\x97": _push(lambda _: Opaque()),
    "\x98": _nothing,
    "V": _push(lambda m: m.line().decode("raw-unicode-escape")),
    "X": lambda m: _word(m, m.number("<I", 4)),
    "\x8c": lambda m: _word(m, m.number("B", 1)),
    "\x8d": lambda m: _word(m, m.number("<Q", 8)),
    "]": _push(lambda _: []),
    "l": _push(lambda m: m.marked()),
    "a": _append,
    "e": _appends,
    ")": _push(lambda _: ()),
    "t": _push(lambda m: tuple(m.marked())),
    "\x85": _tuple_of(1),
    "\x86": _tuple_of(2),
    "\x87": _tuple_of(3),
    "}": _push(lambda _: {}),
    "d": _dict,
    "s": _setitem,
    "u": _setitems,
    "\x8f": _push(lambda _: []),  # a set is a list here: its members need no hash
    "\x90": _appends,
    "\x91": _push(lambda m: tuple(m.marked())),
    "g": lambda m: m.recall(int(m.digits())),
    "h": lambda m: m.recall(m.number("B", 1)),
    "j": lambda m: m.recall(m.number("<I", 4)),
    "p": lambda m: m.remember(int(m.digits())),
    "q": lambda m: m.remember(m.number("B", 1)),
    "r": lambda m: m.remember(m.number("<I", 4)),
    "\x94": lambda m: m.remember(len(m.memo)),
    "\x82": _push(lambda m: m.symbol("extension", str(m.number("B", 1)))),
    "\x83": _push(lambda m: m.symbol("extension", str(m.number("<H", 2)))),
    "\x84": _push(lambda m: m.symbol("extension", str(m.number("<i", 4)))),
    "c": _global,
    "\x93": _stack_global,
    "R": _reduce,
    "b": _build,
    "i": _inst,
    "o": _obj,
    "\x81": _reduce,
    "\x92": _new_ex,
    "\x80": lambda m: m.number("B", 1),
    "\x95": _frame,
    "P": _push(lambda m: Persistent(m.line().decode("utf-8", "replace"))),
    "Q": _push(lambda m: Persistent(m.pop())),
}
_TABLE: list[Callable[[_Machine], None] | None] = [_ACTS.get(chr(code)) for code in range(256)]
