"""What is finite and what is not: every pattern of the small dtypes against torch, and the places where it can hide."""

from __future__ import annotations

import struct
import tracemalloc
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.checkpoint import finite
from overnight.checkpoint.finite import PIECE, all_finite
from overnight.checkpoint.leaves import TORCH_NAMES, buffer

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

SIZES = {name: torch.empty(0, dtype=getattr(torch, kind)).element_size() for name, kind in TORCH_NAMES.items()}
FLOATS = [name for name, kind in TORCH_NAMES.items() if getattr(torch, kind).is_floating_point]
COMPLEX = ["C64", "C128"]
SMALL = [name for name in FLOATS if SIZES[name] <= 2]
IEEE = {"F16": "<e", "F32": "<f", "F64": "<d"}


@pytest.fixture(params=["with numpy", "without numpy"], autouse=True)
def _numpy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without numpy":
        monkeypatch.setattr(finite, "sys", SimpleNamespace(modules={}))


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(buffer(tensor))


def patterns(dtype: str) -> list[bytes]:
    size = SIZES[dtype]
    return [number.to_bytes(size, "little") for number in range(1 << (8 * size))]


@pytest.mark.parametrize("dtype", SMALL)
def test_every_pattern_of_a_small_dtype_is_judged_as_torch_judges_it(dtype: str) -> None:
    every = patterns(dtype)
    tensor = torch.frombuffer(bytearray(b"".join(every)), dtype=getattr(torch, TORCH_NAMES[dtype]))
    expected = torch.isfinite(tensor.to(torch.float64)).tolist()
    assert [all_finite(dtype, memoryview(one)) for one in every] == expected
    assert not all(expected)
    finite = b"".join(one for one, good in zip(every, expected, strict=True) if good)
    assert all_finite(dtype, memoryview(finite * (PIECE // len(finite) + 2)))


def not_finite(dtype: str) -> list[bytes]:
    """Return one NaN and, where the dtype has them, both infinities and NaNs of either sign and with one bit."""
    if dtype in SMALL:
        tensor = torch.frombuffer(bytearray(b"".join(patterns(dtype))), dtype=getattr(torch, TORCH_NAMES[dtype]))
        bad = ~torch.isfinite(tensor.to(torch.float64))
        return [one for one, is_bad in zip(patterns(dtype), bad.tolist(), strict=True) if is_bad][
            :: 1 + SIZES[dtype] * 50
        ]
    if dtype in ("F32", "C64"):
        return [struct.pack("<I", one) for one in (0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF)]
    large = (0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, (0x7FF0 << 48) + 1, (1 << 64) - 1)
    return [struct.pack("<Q", one) for one in large]


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
@pytest.mark.parametrize("pieces", [0, 2])
def test_one_number_that_is_not_finite_is_found_wherever_it_is(dtype: str, pieces: int) -> None:
    part = SIZES[dtype] // (2 if dtype in COMPLEX else 1)
    count = (pieces * PIECE + 1000 * SIZES[dtype]) // part
    data = bytearray(b"\x31" * (count * part))
    assert all_finite(dtype, memoryview(data))
    for at in {0, 1, count // 2, PIECE // part - 1, PIECE // part, count - 2, count - 1}:
        for bad in not_finite(dtype) if at < count else ():
            kept = data[at * part : (at + 1) * part]
            data[at * part : (at + 1) * part] = bad
            assert not all_finite(dtype, memoryview(data)), (at, bad.hex())
            data[at * part : (at + 1) * part] = kept
    assert all_finite(dtype, memoryview(data))


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_and_smallest_finite_numbers_are_finite(dtype: str) -> None:
    kind = getattr(torch, TORCH_NAMES[dtype])
    info = torch.finfo(kind)
    numbers = [info.max, info.min, info.tiny] if dtype != "F8_E8M0" else [info.max, info.tiny]
    tensor = torch.tensor(numbers, dtype=torch.float64).to(kind)
    assert torch.isfinite(tensor.to(torch.float64)).all()
    assert all_finite(dtype, memoryview(raw(tensor) * 70_000))


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F64"])
def test_a_nan_among_the_largest_finite_numbers_is_found(dtype: str) -> None:
    kind = getattr(torch, TORCH_NAMES[dtype])
    tensor = torch.full((50_001,), torch.finfo(kind).min, dtype=kind)
    assert all_finite(dtype, memoryview(raw(tensor)))
    tensor[33_333] = float("nan")
    assert not all_finite(dtype, memoryview(raw(tensor)))


@settings(deadline=None)
@given(st.sampled_from(["F16", "F32", "F64"]), st.lists(st.floats(width=16), max_size=40))
def test_it_agrees_with_python(dtype: str, numbers: list[float]) -> None:
    data = b"".join(struct.pack(IEEE[dtype], one) for one in numbers)
    assert all_finite(dtype, memoryview(data)) == all(abs(one) < float("inf") for one in numbers)


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["F32", "BF16", "F64", "C64"]))
def test_any_bytes_are_judged_as_numpy_judges_them(data: bytes, dtype: str) -> None:
    part = 4 if dtype == "C64" else SIZES[dtype]
    data = whole = data[: len(data) - len(data) % SIZES[dtype]]
    if dtype == "BF16":  # the upper half of an F32
        whole = b"".join(b"\0\0" + whole[at : at + 2] for at in range(0, len(whole), 2))
    expected = bool(np.isfinite(np.frombuffer(whole, f"<f{max(part, 4)}")).all())
    assert all_finite(dtype, memoryview(data)) == expected


@pytest.mark.parametrize("dtype", ["I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL", "F4", "what is this"])
def test_integers_and_unknown_dtypes_are_finite(dtype: str) -> None:
    assert all_finite(dtype, memoryview(b"\xff" * 64))


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_nothing_is_finite_and_half_a_number_is_none(dtype: str) -> None:
    assert all_finite(dtype, memoryview(b""))
    part = SIZES[dtype] // (2 if dtype in COMPLEX else 1)
    assert all_finite(dtype, memoryview(b"\0" * 32 + b"\xff" * (part - 1)))


def test_memory_at_any_address_and_of_any_format_is_read() -> None:
    numbers = np.ones(1000, "<f4")
    shifted = memoryview(bytearray(b"x" + numbers.tobytes()))[1:]
    assert all_finite("F32", shifted)
    numbers[999] = np.inf
    assert not all_finite("F32", memoryview(numbers))
    assert not all_finite("F32", memoryview(b"x" + numbers.tobytes())[1:])
    assert not all_finite("F32", memoryview(numbers.reshape(10, 100)))


def test_it_takes_little_memory() -> None:
    data = memoryview(bytearray(32 << 20))
    all_finite("BF16", data[:PIECE])
    tracemalloc.start()
    try:
        assert all_finite("BF16", data)
        assert tracemalloc.get_traced_memory()[1] < 4 * PIECE
    finally:
        tracemalloc.stop()
