"""Pickles are read, never run: every protocol, every kind of value, and whatever a stranger may send."""

from __future__ import annotations

import collections
import datetime as dt
import os
import pickle
import pickletools
import random
import struct
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from overnight.inspector import opcodes
from overnight.inspector.counts import Counts
from overnight.inspector.objects import walk
from overnight.inspector.symbols import Call, Opaque, Persistent, Symbol, TooLarge, Unreadable


@dataclass
class Config:
    step: int = 3
    name: str = "a"


class Runs:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.system, (f"touch {self.proof}",)


PLAIN = {
    "ints": [0, 1, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**63, -(2**200)],
    "floats": [0.5, -1e300, float("inf")], "none": None, "yes": True, "no": False, "word": "é\n\u2028'\\", "empty": [],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], ("a", 1): "pair", 7: {"deep": {"deeper": [[]]}}, b"k"[0]: 1,
    "long word": "x" * 300, "od": collections.OrderedDict(x=1, y=[2]), "dd": collections.defaultdict(list, {"q": [1]}),
}  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_are_what_pickle_would_make(protocol: int) -> None:
    assert opcodes.read(pickle.dumps(PLAIN, protocol)).value == pickle.loads(pickle.dumps(PLAIN, protocol))


@pytest.mark.parametrize("protocol", range(3, 6))
def test_bytes_and_sets(protocol: int) -> None:
    found = opcodes.read(pickle.dumps([b"ab", b"x" * 300, bytearray(b"cd"), {1}, frozenset([2])], protocol)).value
    assert found[:2] == [b"ab", b"x" * 300]
    if protocol == 5:
        assert found[2] == b"cd"
    if protocol >= 4:
        assert found[3:] == [[1], (2,)]


def test_every_opcode_of_python_is_known() -> None:
    assert {one.code for one in pickletools.opcodes} - set(opcodes._ACTS) == {"."}


@pytest.mark.parametrize("protocol", range(6))
def test_objects_become_calls_and_globals_symbols(protocol: int) -> None:
    read = opcodes.read(pickle.dumps([Config(), dt.date(2020, 1, 2), dt.date], protocol))
    config, date, kind = read.value
    assert isinstance(config, Call)
    assert config.name.endswith(".Config")
    assert config.state == {"step": 3, "name": "a"}
    assert isinstance(date, Call)
    assert date.name == "datetime.date"
    assert kind == Symbol("datetime.date")
    assert "datetime.date" in read.globals


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_run(protocol: int, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    made = opcodes.read(pickle.dumps([Runs(proof)], protocol)).value[0]
    assert not proof.exists()
    assert isinstance(made, Call)
    assert made.name.endswith(".system")
    assert made.args == (f"touch {proof}",)


@pytest.mark.parametrize(
    "hand",
    [b"(cos\nsystem\nX\x01\0\0\0xo.", b"(X\x01\0\0\0xios\nsystem\n.", b"cos\nsystem\n(X\x01\0\0\0xtR.",
     b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85\x81.", b"\x80\x04\x8c\x02os\x8c\x06system\x93)}\x92."],
)  # fmt: skip
def test_every_way_to_call_is_a_call(hand: bytes) -> None:
    read = opcodes.read(hand)
    assert isinstance(read.value, Call)
    assert (read.value.name, read.globals) == ("os.system", ("os.system",))


def test_persistent_ids_extensions_and_buffers() -> None:
    assert opcodes.read(b"P7\n.").value.pid == "7"
    inside = opcodes.read(b"\x80\x02(X\x07\0\0\0storageK\x05tQ.").value
    assert isinstance(inside, Persistent)
    assert inside.pid == ("storage", 5)
    assert opcodes.read(b"\x80\x02\x82\x09.").value == Symbol("extension.9")
    assert isinstance(opcodes.read(b"\x80\x05\x97\x98.").value, Opaque)


@pytest.mark.parametrize("protocol", range(6))
def test_what_is_cut_off_is_said_to_be(protocol: int) -> None:
    data = pickle.dumps([PLAIN, Config()], protocol)
    for size in range(len(data)):
        with pytest.raises(Unreadable):
            opcodes.read(data[:size])


def test_noise_gives_values_or_a_clear_error() -> None:
    chance = random.Random(5)
    data = pickle.dumps([PLAIN, Config(), 1.5], 4)
    for _ in range(1000):
        noise = bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            noise[chance.randrange(len(noise))] = chance.randrange(256)
        try:
            list(walk(opcodes.read(bytes(noise)).value))
        except Unreadable as error:
            assert "\n" not in str(error)  # noqa: PT017
    for _ in range(1000):
        try:
            list(walk(opcodes.read(chance.randbytes(chance.randrange(200))).value))
        except Unreadable:
            continue


def test_depth_costs_nothing() -> None:
    levels = 20_000
    value = opcodes.read(b"\x80\x04" + b"]" * levels + b"a" * (levels - 1) + b".").value
    assert sum(1 for _ in walk(value)) == levels
    calls = b"cos\nsystem\n" * 20_000 + b")" + b"R\x85" * 19_999 + b"R."
    list(walk(opcodes.read(calls).value))
    del value


@pytest.mark.parametrize("key", [False, True])
def test_a_tuple_that_holds_itself_many_times_over(key: bool) -> None:
    body = b"\x80\x04K\x01" + b"".join(b"\x94h" + bytes([at]) + b"\x86" for at in range(100))
    data = body + b"\x94}h" + bytes([100]) + b"K\x01s." if key else body + b"."
    assert sum(1 for _ in walk(opcodes.read(data).value)) < 1000


def test_a_list_that_holds_itself() -> None:
    value = opcodes.read(b"\x80\x04]\x94h\x00a.").value
    assert sum(1 for _ in walk(value)) == 1


@pytest.mark.parametrize("opcode", [b"X<I", b"\x8d<Q", b"\x8e<Q", b"B<I", b"\x96<Q", b"T<i", b"\x8b<i", b"\x95<Q"])
@pytest.mark.parametrize("size", [5, 1 << 30, (1 << 31) - 1])
def test_sizes_that_are_not_there_cost_nothing(opcode: bytes, size: int) -> None:
    tracemalloc.start()
    with pytest.raises(Unreadable):
        opcodes.read(b"\x80\x05" + opcode[:1] + struct.pack(opcode[1:].decode(), size) + b"abc.")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("text", [b"L" + b"9" * 100_000 + b"\n.", b"I" + b"9" * 100_000 + b"\n.", b"Fx\n.", b"Iz\n."])
def test_numbers_as_text_are_bounded(text: bytes) -> None:
    with pytest.raises(Unreadable):
        opcodes.read(text)


def test_more_than_is_read() -> None:
    with pytest.raises(TooLarge, match="more than 1,000 opcodes"):
        opcodes.read(b"\x80\x04" + b"N0" * 1000 + b"N.", most=1000)
    with pytest.raises(TooLarge, match="longer than what is read"):
        opcodes.read(bytes(opcodes.LARGEST + 1))


BROKEN = [
    b"", b".", b"0.", b"(.", b"t.", b"(0.", b"K\x01s.", b"K\x01K\x02a.", b"}K\x01K\x02(u.", b"h\x01.",
    b"\x93.", b"(K\x01u.", b"}(K\x01u.", b"R.", b"b.", b"(1.", b"\xff.", b"o.",
]  # fmt: skip


@pytest.mark.parametrize("data", BROKEN)
def test_a_broken_machine_says_so(data: bytes) -> None:
    with pytest.raises(Unreadable):
        opcodes.read(data)


@pytest.mark.parametrize(
    ("state", "step"),
    [({"step": 5, "epoch": 2}, 5), ({"global_step": 9, "step": 5}, 9), ({"epoch": 4}, None), ({"iter_num": 3}, 3),
     ({"a": {"b": {"iteration": 8}}}, 8), ({"optimizer": {"state": {0: {"step": 6}, 1: {"step": 7}}}}, 7),
     ({"step": True}, None), ({"step": -1}, None), ({"step": float("nan")}, None), ({"step": 12.0}, 12),
     ({"config": {"step": 3}}, None), ({"config": {"step": 3}, "trainer": {"step": 4}}, 4), ({"last_epoch": 40}, 40),
     ({"last_epoch": 4, "epoch": 4}, None), ({"step": "seven"}, None), ({"step": 1 << 60}, None), ([1, 2], None)],
)  # fmt: skip
def test_how_far_the_training_had_come(state: object, step: int | None) -> None:
    counts = Counts(lambda _: None)
    for place, value in walk(opcodes.read(pickle.dumps(state, 2)).value):
        counts.take(place, value)
    assert counts.step == step
