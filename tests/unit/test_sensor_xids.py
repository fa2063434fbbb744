"""Error events from two sources: addresses in two forms, and what both tell is told once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from overnight.sensors import Gpu, Xid
from overnight.sensors.xids import KernelLog, Xids, bus_of

GPUS = [Gpu(index=0, bus_id="00000000:11:00.0"), Gpu(index=3, bus_id="00000001:C1:00.0")]


class Source:
    """Tells what it is given, once."""

    def __init__(self, *found: Xid) -> None:
        self.found = list(found)

    def take(self) -> list[Xid]:
        found, self.found = self.found, []
        return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("00000000:41:00.0", (0, 0x41, 0)),
        ("0000:41:00", (0, 0x41, 0)),
        ("41:00", (0, 0x41, 0)),
        ("00000001:C1:00.0", (1, 0xC1, 0)),
        ("0001:c1:00", (1, 0xC1, 0)),
        ("", None),
        ("GPU", None),
        (None, None),
    ],
)
def test_addresses_in_every_form(text: str | None, found: tuple[int, int, int] | None) -> None:
    assert bus_of(text) == found


def test_the_kernels_words_win_and_a_second_telling_is_none() -> None:
    bare = Source(Xid(code=79, at=100.0, device="00000001:C1:00.0"))
    kernel = Source(Xid(code=79, at=100.4, device="0001:c1:00", text="it has fallen off the bus"))
    both = Xids([bare, kernel])  # type: ignore[list-item]
    (told,) = both.take(GPUS)
    assert told == Xid(code=79, at=100.4, device="0001:c1:00", index=3, text="it has fallen off the bus")
    kernel.found = [Xid(code=79, at=101.0, device="0001:c1:00", text="again")]
    assert both.take(GPUS) == ()
    kernel.found = [Xid(code=79, at=150.0, device="0001:c1:00", text="much later")]
    assert [one.text for one in both.take(GPUS)] == ["much later"]


def test_other_cards_and_codes_are_other_events() -> None:
    source = Source(
        Xid(code=31, at=3.0, device="00000000:11:00.0"),
        Xid(code=31, at=2.0, device="00000001:C1:00.0"),
        Xid(code=43, at=1.0, device="00000000:11:00.0"),
        Xid(code=999, at=4.0, device="00000007:99:00.0"),
    )
    told = Xids([source]).take(GPUS)  # type: ignore[list-item]
    assert [(one.code, one.index) for one in told] == [(43, 0), (31, 3), (31, 0), (999, None)]
    assert [one.text for one in told] == ["GPU stopped processing", *["GPU memory page fault"] * 2, ""]


def test_lines_of_the_kernel_are_dated_and_chosen(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    lines = [
        f"4,1,{round((now - 100) * 1e6)},-;NVRM: Xid (PCI:0000:11:00): 48, pid=1, name=old",
        f"4,2,{round((now - 10) * 1e6)},-;NVRM: Xid (PCI:0000:11:00): 63, pid=1, name=new",
        " DEVICE=+pci:0000:11:00.0",
        f"4,3,{round(now * 1e6)},-;NVRM: loading NVIDIA UNIX module",
        "NVRM: Xid (PCI:0000:11:00): 79, without a time",
        "4,x,y,-;NVRM: Xid (PCI:0000:11:00): 79, \xff",
    ]
    path.write_bytes("\n".join(lines).encode("latin-1") + b"\n")
    log = KernelLog(path, time.time() - 50)
    (one,) = log.take()
    assert (one.code, one.device) == (63, "0000:11:00")
    assert abs(one.at - (time.time() - 10)) < 5
    assert log.take() == []
    assert log.closed is None


def test_a_log_that_is_not_there_is_closed(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none", 0.0)
    assert log.take() == []
    assert "not readable" in (log.closed or "")
    assert Xids([log]).notes == (log.closed,)
