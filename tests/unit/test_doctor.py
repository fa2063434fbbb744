"""``doctor`` on trees of files: what each finding says, and which settings of systemd win over which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overnight import cli
from overnight.cli.doctor import lines
from overnight.doctor import checks as doctor
from overnight.doctor import gpu as doctorgpu
from overnight.doctor.findings import Check
from overnight.machine import Machine
from overnight.sensors import Gpu, GpuSample

SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
MANAGER = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope\n"
YES, NO = "[Login]\nKillUserProcesses=yes\n", "[Login]\nKillUserProcesses=no\n"
PROC = "22 27 0:21 / /proc rw,nosuid - proc proc rw{}\n27 1 8:1 / / rw - ext4 /dev/sda rw\n"


def tree(place: Path, files: dict[str, str] | None = None, **about: Any) -> Machine:
    """Return a machine of a few files; systemd is its first process."""
    for name, text in {"/proc/1/comm": "systemd\n", **(files or {})}.items():
        path = place / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(place, home=Path("/home/me/runs"), **about)


MAIN, ETC, RUN, LIB = (
    "/etc/systemd/logind.conf",
    "/etc/systemd/logind.conf.d/50-a.conf",
    "/run/systemd/logind.conf.d/60-b.conf",
    "/usr/lib/systemd/logind.conf.d/50-a.conf",
)
LINGER = "/var/lib/systemd/linger/user"


@pytest.mark.parametrize(
    ("files", "level"),
    [
        ({}, "ok"),
        ({MAIN: "[Login]\n#KillUserProcesses=yes\n"}, "ok"),
        ({MAIN: YES}, "problem"),
        ({MAIN: NO}, "ok"),
        ({MAIN: "[Other]\nKillUserProcesses=yes\n"}, "ok"),
        ({MAIN: "[Login]\nKillUserProcesses = true \n"}, "problem"),
        ({"/usr/lib/systemd/logind.conf": YES}, "problem"),
        ({"/usr/lib/systemd/logind.conf": YES, MAIN: "[Login]\n"}, "ok"),
        ({MAIN: YES, LIB: NO}, "ok"),
        ({MAIN: NO, ETC: YES}, "problem"),
        ({LIB: YES, ETC: NO}, "ok"),
        ({ETC: YES, RUN: NO}, "ok"),
        ({ETC: NO, RUN: YES}, "problem"),
        ({MAIN: YES, ETC: "[Login]\nKillExcludeUsers=root user\n"}, "ok"),
        ({MAIN: YES, ETC: "[Login]\nKillOnlyUsers=other\n"}, "ok"),
        ({MAIN: YES, ETC: "[Login]\nKillOnlyUsers=other user\n"}, "problem"),
        ({MAIN: YES, "/proc/self/cgroup": SESSION}, "problem"),
        ({MAIN: NO, "/proc/self/cgroup": SESSION}, "ok"),
        ({MAIN: YES, "/proc/self/cgroup": SESSION, LINGER: ""}, "warning"),
        ({MAIN: YES, "/proc/self/cgroup": MANAGER, LINGER: ""}, "ok"),
        ({MAIN: NO, "/proc/self/cgroup": MANAGER}, "problem"),
        ({MAIN: YES, "/proc/1/comm": "bash\n"}, "ok"),
        ({MAIN: YES, "/proc/1/comm": "init\n", "/run/systemd/system/x": ""}, "problem"),
    ],
)
def test_what_a_logout_ends(tmp_path: Path, files: dict[str, str], level: str) -> None:
    machine = tree(tmp_path, files)
    found = doctor.logind(machine)
    assert found.level == level, found.text
    assert len(doctor.quick(machine)) == (level == "problem")


def test_the_problem_of_a_logout_has_both_remedies(tmp_path: Path) -> None:
    (said,) = doctor.quick(tree(tmp_path, {MAIN: YES}))
    assert "KillUserProcesses=yes, /etc/systemd/logind.conf" in said
    assert "`loginctl enable-linger`" in said
    assert "`systemd-run --user --scope overnight run ...`" in said


def test_root_is_spared_by_default(tmp_path: Path) -> None:
    assert doctor.logind(tree(tmp_path, {MAIN: YES}, user="root", uid=0)).level == "ok"
    files = {MAIN: YES + "KillExcludeUsers=\n"}
    assert doctor.logind(tree(tmp_path / "b", files, user="root", uid=0)).level == "problem"


@pytest.mark.parametrize(
    ("check", "files", "level", "words"),
    [
        ("unit", {"/proc/self/cgroup": "0::/system.slice/train.service\n"}, "warning", "in train.service"),
        ("unit", {"/proc/self/cgroup": MANAGER}, "ok", "not in a systemd service"),
        ("unit", {}, "ok", "not in a systemd service"),
        ("container", {"/.dockerenv": ""}, "warning", "docker"),
        ("container", {"/run/.containerenv": ""}, "warning", "podman"),
        ("container", {}, "ok", "not in a container"),
        ("stacks", {"/usr/bin/py-spy": ""}, "ok", "ptrace_scope=0"),
        ("stacks", {}, "warning", "py-spy is not there"),
        ("stacks", {"/usr/bin/py-spy": "", "/proc/sys/kernel/yama/ptrace_scope": "1\n"}, "warning", "ptrace_scope=1"),
        (
            "stacks",
            {
                "/usr/bin/py-spy": "",
                "/proc/sys/kernel/yama/ptrace_scope": "1\n",
                "/proc/self/status": "Name:\tx\nCapEff:\t000001ffffffffff\n",
            },
            "ok",
            "ptrace_scope=1",
        ),
        (
            "stacks",
            {"/proc/sys/kernel/yama/ptrace_scope": "3\n", "/proc/self/status": "CapEff:\t000001ffffffffff\n"},
            "warning",
            "ptrace_scope=3",
        ),
        ("memory", {"/proc/self/oom_score_adj": "1000\n"}, "warning", "the highest"),
        ("memory", {"/proc/self/oom_score_adj": "200\n", "/proc/meminfo": "SwapTotal:  2097152 kB\n"}, "ok", "2.0 GiB"),
        ("proc", {"/proc/self/mountinfo": PROC.format("")}, "ok", "all"),
        ("proc", {"/proc/self/mountinfo": PROC.format(",hidepid=2")}, "ok", "hidepid=2"),
        ("proc", {"/proc/self/mountinfo": PROC.format(",hidepid=invisible")}, "ok", "hidepid=invisible"),
        ("proc", {"/proc/self/mountinfo": PROC.format(",hidepid=4")}, "problem", "hidepid=4"),
        ("proc", {"/proc/self/mountinfo": "27 1 8:1 / / rw - ext4 /dev/sda rw\n"}, "problem", "not mounted"),
        ("kernel", {"/proc/sys/kernel/osrelease": "5.2.0-generic\n"}, "problem", "5.2"),
        ("kernel", {"/proc/sys/kernel/osrelease": "6.1.0-13-amd64\n"}, "ok", "unknown before 6.15"),
        ("kernel", {"/proc/sys/kernel/osrelease": "6.15.2\n"}, "ok", "any process"),
        ("tmux", {}, "ok", "not installed"),
        ("tmux", {"/usr/bin/tmux": ""}, "ok", "installed"),
        ("gpu", {}, "ok", "no NVIDIA driver"),
        ("gpu", {"/proc/driver/nvidia/version": "x"}, "ok", "does not answer"),
    ],
)
def test_findings(tmp_path: Path, check: str, files: dict[str, str], level: str, words: str) -> None:
    found: Check = getattr(doctor, check)(tree(tmp_path, files))
    assert (found.level, found.check) == (level, check)
    assert words in found.text
    assert bool(found.fix) is (level != "ok")


def inotify(place: Path, watches: int, instances: int) -> Check:
    folder = "/proc/sys/fs/inotify/"
    files = {f"{folder}max_user_watches": f"{watches}\n", f"{folder}max_user_instances": f"{instances}\n"}
    return doctor.inotify(tree(place, files))


def test_few_watches_are_told(tmp_path: Path) -> None:
    assert inotify(tmp_path / "a", 65536, 128).level == "ok"
    assert inotify(tmp_path / "b", 8, 128).level == inotify(tmp_path / "c", 65536, 4).level == "warning"
    assert doctor.inotify(tree(tmp_path / "d")).level == "ok"


@pytest.mark.parametrize(("kind", "level"), [("ext4", "ok"), ("nfs4", "warning"), ("lustre", "warning")])
def test_a_network_disk_is_told(tmp_path: Path, kind: str, level: str) -> None:
    machine = tree(tmp_path, {"/proc/self/mountinfo": f"30 1 0:40 / /home rw - {kind} server:/x rw\n"})
    (tmp_path / "home").mkdir()
    found = doctor.disk(machine)
    if "GiB free," not in found.text and found.level != "ok" and kind not in found.text:
        pytest.skip(f"this machine's own disk is nearly full: {found.text}")
    assert found.level == level
    assert kind in found.text


def test_slurm_and_kubernetes_are_known_by_their_environment(tmp_path: Path) -> None:
    inside = {"SLURM_JOB_ID": "7", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    machine = tree(tmp_path, environ=inside)
    assert "--signal=B:TERM@120" in doctor.slurm(machine).fix
    assert "killed 30 s after its stop" in doctor.container(machine).text
    assert doctor.slurm(tree(tmp_path)).level == "ok"


def test_every_check_has_its_own_name_and_runs_on_an_empty_tree(tmp_path: Path) -> None:
    found = doctor.examine(Machine(tmp_path))
    assert [one.check for one in found] == [check.__name__ for check in doctor.CHECKS]
    assert len({one.check for one in found}) == len(found) >= 15


def test_a_finding_is_shown_in_80_columns() -> None:
    one = Check(check="logind", level="problem", text="word " * 40, fix="mend " * 40)
    for paint in (True, False):
        shown = lines(one, paint=paint)
        assert ("\x1b[31m" in shown[0]) is paint
        assert all(len(line.replace("\x1b[31m", "").replace("\x1b[0m", "")) <= 80 for line in shown)


def test_this_machine_is_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "none" / "yet"))
    code = cli.main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == any(one["level"] == "problem" for one in found)
    assert [one["check"] for one in found] == [check.__name__ for check in doctor.CHECKS]
    assert all(set(one) == {"check", "level", "text", "fix"} for one in found)
    assert not (tmp_path / "none").exists(), "nothing is made"
    assert cli.main(["doctor"]) == code
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("sample", "level", "words"),
    [
        (GpuSample(at=0.0, trouble="the NVIDIA driver is not loaded"), "ok", "the NVIDIA driver is not loaded"),
        (GpuSample(at=0.0), "ok", "no GPU is listed"),
        (
            GpuSample(at=0.0, gpus=tuple(Gpu(index=at, name="NVIDIA H100 PCIe") for at in (0, 1)), driver="550.54"),
            "ok",
            "2 x NVIDIA H100 PCIe, driver 550.54",
        ),
        (
            GpuSample(at=0.0, gpus=(Gpu(index=0, name="A"), Gpu(index=1, lost="GPU is lost"))),
            "problem",
            "GPU 1 is lost: GPU is lost",
        ),
        (GpuSample(at=0.0, gpus=(Gpu(index=3, remap_failed=True),)), "warning", "GPU 3 could not replace"),
        (GpuSample(at=0.0, gpus=(Gpu(index=3, remap_pending=True),)), "warning", "GPU 3 waits for a reset"),
    ],
)
def test_what_gpus_answer(monkeypatch: pytest.MonkeyPatch, sample: GpuSample, level: str, words: str) -> None:
    monkeypatch.setattr(doctorgpu, "gpu_likely", lambda _: True)
    monkeypatch.setattr("overnight.sensors.gpu.look", lambda _: sample)
    found = doctorgpu.gpu(Machine())
    assert found.level == level
    assert words in found.text
    assert bool(found.fix) is (level != "ok")


@pytest.mark.parametrize(("state", "level"), [("D", "problem"), ("S", "ok")])
def test_who_holds_the_devices(monkeypatch: pytest.MonkeyPatch, state: str, level: str) -> None:
    said = {"holders": [{"state": state, "text": "it is held"}], "sentences": ["it is held"]}
    monkeypatch.setattr(doctorgpu, "device_files", lambda *_: [Path("/dev/nvidia0")])
    monkeypatch.setattr(Machine, "answer", lambda *_: json.dumps(said))
    found = doctorgpu.devices(Machine())
    assert (found.level, found.text) == (level, "it is held")
    monkeypatch.setattr(Machine, "answer", lambda *_: None)
    assert doctorgpu.devices(Machine()).level == "warning"


def test_a_kernel_log_that_is_closed_matters_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overnight.exits.postmortem.kernel_log_closed", lambda: "Operation not permitted")
    monkeypatch.setattr(doctorgpu, "device_files", list)
    assert doctorgpu.kernel_log(Machine()).level == "ok"
    monkeypatch.setattr(doctorgpu, "device_files", lambda: [Path("/dev/nvidia0")])
    found = doctorgpu.kernel_log(Machine())
    assert (found.level, "not readable (Operation not permitted)" in found.text) == ("warning", True)
    monkeypatch.setattr("overnight.exits.postmortem.kernel_log_closed", lambda: None)
    assert doctorgpu.kernel_log(Machine()).level == "ok"
