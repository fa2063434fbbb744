"""What a run is asked otherwise than the one whose saves it goes on from: found, named, and nothing else named."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from overnight import cli
from overnight.folder import RunFolder, utc, write_json
from overnight.resumption import carryover
from overnight.resumption.shaping import Place, differences, flags_of, read_command, same, shapes
from overnight.spec import RunSpec

GOES_ON = "; a schedule that depends on it goes on differently"


class House:
    """A home with earlier runs and the folder in which they worked."""

    def __init__(self, path: Path) -> None:
        self.home, self.work = path / "home", path / "work"
        self.work.mkdir()
        for name in ("train.py", "other.py", "run.sh", "model.jl"):
            (self.work / name).write_text("")
        self.at = time.time() - 3600

    def spec(self, command: str, **fields: Any) -> RunSpec:
        fields = {"name": "next", "cwd": str(self.work), "executable": "", "log": "", **fields}
        return RunSpec(argv=tuple(shlex.split(command)), **fields)

    def ran(self, name: str, command: str, *, save: str | None = "out/ckpt-300.pt", **status: Any) -> RunFolder:
        """Write down an ended run; ``save`` is a file that it left, below the working folder."""
        self.at += 60
        fields = status.pop("spec", {})
        spec = {"argv": shlex.split(command), "checkpoints": None, "resume_args": [], "devices": 1, **fields}
        origins = status.pop("origins", {"devices": "default"})
        saves = []
        if save is not None:
            (self.work / save).parent.mkdir(parents=True, exist_ok=True)
            (self.work / save).write_bytes(b"weights")
            saves = [{"step": 300, "path": str(self.work / save), "at": utc(self.at), "seconds": 1.0}]
        folder = RunFolder(self.home / "runs" / name)
        folder.create()
        write_json(folder.run_json, {"spec": spec, "origins": origins, "created_at": utc(self.at)})
        known = {
            "state": "stopped",
            "step": 320,
            "attempt": 1,
            "argv": shlex.split(command),
            "cwd": str(self.work),
            "created_at": utc(self.at),
            "started_at": utc(self.at),
            "checkpoint": saves[-1] if saves else None,
            "saves": saves,
            **{key: fields[key] for key in ("steps", "devices") if key in fields},
        }
        write_json(folder.status_json, {**known, **status})
        return folder

    def said(self, command: str, **fields: Any) -> list[str]:
        return carryover.changes(self.spec(command, **fields), self.home)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


# -- the row ---------------------------------------------------------------------------------------------------------


def test_another_number_of_steps_is_named(house: House) -> None:
    house.ran("gpt2", "python train.py --steps 1000 --lr 3e-4 --log-every 10")
    said = house.said("python train.py --steps 2000 --lr 1e-4 --log-every 5 --resume")
    changed = "--steps 1000 -> 2000, --lr 3e-4 -> 1e-4"
    assert said == [f'changed since run "gpt2" (last at step 320): {changed}{GOES_ON}']


def test_nothing_is_said_of_what_shapes_no_schedule(house: House) -> None:
    house.ran("gpt2", "python train.py --steps 1000 --lr 3e-4 --save_steps 50 --eval_batch_size 8 --workers 2")
    assert (
        house.said("python3.12 -u train.py --lr=0.0003 --steps 1_000 --save_steps 9 --eval_batch_size 2 --resume") == []
    )
    assert house.said("python other.py --steps 5") == []
    assert house.said("python train.py --steps 5", cwd=str(house.home)) == []


def test_a_finished_run_counts_and_one_that_lives_does_not(house: House) -> None:
    house.ran("done", "python train.py --steps 1000", state="finished", step=1000)
    house.ran("live", "python train.py --steps 3000", state="pending", checkpoint=None, saves=[])
    (said,) = house.said("python train.py --steps 2000")
    assert 'run "done" (last at step 1000): --steps 1000 -> 2000;' in said


def test_the_newest_run_with_saves_left_is_meant(house: House) -> None:
    house.ran("first", "python train.py --steps 100")
    house.ran("second", "python train.py --steps 200", save="out/ckpt-900.pt")
    house.ran("third", "python train.py --steps 300", save=None)
    assert 'run "second"' in house.said("python train.py --steps 400")[0]
    (house.work / "out/ckpt-900.pt").unlink()
    assert 'run "first"' in house.said("python train.py --steps 400")[0]
    (house.work / "out/ckpt-300.pt").unlink()
    assert house.said("python train.py --steps 400") == []


def test_a_folder_of_saves_counts_for_the_run_that_wrote_there(house: House) -> None:
    folder = house.work / "ckpts"
    folder.mkdir()
    spec = {"checkpoints": str(folder)}
    house.ran("old", "python train.py --steps 100", save=None, spec=spec)
    assert house.said("python train.py --steps 200", checkpoints=str(folder)) == [], "it is empty"
    (folder / "a.pt").write_bytes(b"")
    os.utime(folder / "a.pt", (house.at - 500, house.at - 500))
    assert house.said("python train.py --steps 200", checkpoints=str(folder)) == [], "of somebody before it"
    os.utime(folder / "a.pt", (house.at + 5, house.at + 5))
    (said,) = house.said("python train.py --steps 200", checkpoints=str(folder))
    assert "--steps 100 -> 200" in said


def test_what_a_restart_appended_was_in_force_at_last(house: House) -> None:
    spec = {"resume_args": ["--lr", "1e-4"]}
    house.ran("gpt2", "python train.py --lr 3e-4", attempt=2, spec=spec)
    assert house.said("python train.py --lr 1e-4") == []
    assert "--lr 1e-4 -> 3e-4" in house.said("python train.py --lr 3e-4")[0]


def test_damaged_and_strange_runs_are_passed_over(house: House) -> None:
    house.ran("good", "python train.py --steps 100")
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"spec": 3}'), ("d", "{}")):
        folder = house.ran(name, "python train.py --steps 7")
        folder.run_json.write_text(text)
    house.ran("e", "python train.py --steps 7", argv=[1, 2])
    house.ran("f", "python train.py --steps 7", saves=[3, {"path": 4}, {}], checkpoint={"path": None})
    assert 'run "good"' in house.said("python train.py --steps 400")[0]


# -- whether it goes on from there -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --steps 200 --out out-b",
        "python train.py --steps 200",
        "python train.py --steps 200 --out out --no-resume",
        "python train.py --steps 200 --out out --resume=false",
        "python train.py --steps 200 --out out --init_from=scratch",
        "python train.py --steps 200 --out out --from-scratch",
    ],
)
def test_a_fresh_start_is_left_alone(house: House, command: str) -> None:
    house.ran("a", "python train.py --steps 100 --out out")
    assert house.said(command) == []


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --steps 200 --out out",
        "python train.py --steps 200 --out ./out/",
        "python train.py --steps 200 --out elsewhere --resume out/ckpt-300.pt",
        "python train.py --steps 200 out --init_from=resume",
    ],
)
def test_what_names_the_same_place_goes_on(house: House, command: str) -> None:
    house.ran("a", "python train.py --steps 100 --out out")
    assert "--steps 100 -> 200" in house.said(command)[0]


def test_trials_that_save_under_their_names_do_not_go_on_from_each_other(house: House) -> None:
    house.ran("a", "python train.py --lr 3e-4 --name small", save="runs/small/x.pt")
    assert house.said("python train.py --lr 1e-4 --name large") == []
    assert "--lr 3e-4 -> 1e-4" in house.said("python train.py --lr 1e-4 --name small")[0]
    house.ran("b", "python train.py --lr 3e-4", save="runs/lr3e-4/x.pt")
    assert house.said("python train.py --lr 1e-4") == []


def test_another_checkpoints_folder_is_another_place(house: House) -> None:
    house.ran("a", "python train.py --steps 100")
    assert house.said("python train.py --steps 200", checkpoints=str(house.work / "b")) == []
    assert house.said("python train.py --steps 200", checkpoints=str(house.work / "out"))


# -- Overnight's own settings, configuration files, --resume-args ------------------------------------------------------


def test_what_overnight_itself_was_told_counts_too(house: House) -> None:
    spec = {"steps": 1000, "tokens_per_step": 4096.0, "devices": 4, "seq_len": 512}
    house.ran("a", "python train.py", spec=spec, origins={})
    said = house.said("python train.py", steps=2000, tokens_per_step=8192.0, devices=8, seq_len=512)
    own = "Overnight's --steps 1000 -> 2000, Overnight's --tokens-per-step 4096 -> 8192, Overnight's --devices 4 -> 8"
    assert said == [f'changed since run "a" (last at step 320): {own}{GOES_ON}']
    assert house.said("python train.py", steps=1000, devices=4) == [], "what is not given now is not known to differ"


def test_one_change_that_both_were_told_is_named_once(house: House) -> None:
    house.ran("a", "python train.py --steps 1000", spec={"steps": 1000})
    (said,) = house.said("python train.py --steps 2000", steps=2000)
    assert said.count("1000 -> 2000") == 1


def test_devices_that_nobody_gave_do_not_differ(house: House) -> None:
    house.ran("a", "python train.py")
    assert house.said("python train.py", devices=8) == []


def test_configuration_files(house: House) -> None:
    old, new = house.work / "config.yaml", house.work / "b.yaml"
    old.write_text("lr: 1\n")
    new.write_text("lr: 2\n")
    os.utime(old, (house.at - 50, house.at - 50))
    house.ran("a", "python train.py --config config.yaml")
    assert house.said("python train.py --config=./config.yaml --resume") == []
    assert "--config config.yaml -> b.yaml" in house.said("python train.py --config b.yaml --resume")[0]
    assert house.said("python train.py --config b.yaml") == [], "another trial"
    new.write_text("lr: 1\n")
    assert house.said("python train.py --config b.yaml --resume") == [], "another name for the same"
    os.utime(old, (house.at + 50, house.at + 50))
    assert "config.yaml (written to since it had started)" in house.said("python train.py --config config.yaml")[0]


def test_what_resume_args_override(house: House) -> None:
    first = "python train.py --lr 3e-4 --steps 100"
    said = house.said(first, resume_args=("--resume", "--lr", "1e-4", "--warmup", "5", "--steps=100"))
    lr = "--resume-args sets --lr 1e-4 where the command has --lr 3e-4"
    assert said == [f"{lr}, --resume-args sets --warmup 5, which the command does not set{GOES_ON} after a restart"]
    assert house.said(first, resume_args=("--resume", "{checkpoint}", "--data", "{checkpoint}/data")) == []


def test_secrets_and_what_moves_a_cursor_are_not_shown(house: House) -> None:
    house.ran("a", "python train.py --data-token abc --data s3://me:pw@host/x?sig=9 --lr 1")
    said = house.said("python train.py --data-token xyz --data s3://me:pw2@host/y?sig=8 --lr '2\x1b[2J'")[0]
    assert "--data-token (not shown) -> (not shown)" in said
    assert "--data s3://...@host/x?... -> s3://...@host/y?..." in said
    assert not any(word in said for word in ("abc", "xyz", "pw", "sig", "\x1b"))


# -- words -----------------------------------------------------------------------------------------------------------

FILES = {"/w/train.py", "/w/config.yaml", "/w/model.jl", "/w/bin/train", "/w/data.bin"}
PLACE = Place("/w", FILES.__contains__)


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("python train.py --steps 5", ("script", "/w/train.py")),
        ("/usr/bin/python3.11 -u -X dev ./train.py", ("script", "/w/train.py")),
        ("python -m pkg.train --steps 5", ("module", "pkg.train")),
        ("python -mpkg.train", ("module", "pkg.train")),
        ("torchrun --standalone --nproc_per_node 8 train.py config/x.py", ("script", "/w/train.py")),
        ("python -m torch.distributed.run --nproc-per-node=2 train.py", ("script", "/w/train.py")),
        ("python /venv/bin/torchrun --nproc_per_node 2 train.py", ("script", "/w/train.py")),
        ("torchrun -m pkg.train --seed 1", ("module", "pkg.train")),
        ("accelerate launch --config_file config.yaml train.py", ("script", "/w/train.py")),
        ("uv run --python python3.12 train.py", ("script", "/w/train.py")),
        ("uv run python -u train.py", ("script", "/w/train.py")),
        ("conda run -n env python train.py", ("script", "/w/train.py")),
        ("numactl -m 0 python train.py", ("script", "/w/train.py")),
        ("env A=b timeout 2h nice -n 10 python train.py", ("script", "/w/train.py")),
        ("srun -n 4 uv run train.py", ("script", "/w/train.py")),
        ("bash -c 'cd . && LR=3 exec python train.py 2>&1 | tee log'", ("script", "/w/train.py")),
        ("bash run.sh", ("script", "/w/run.sh")),
        ("julia --project=. model.jl config.yaml", ("script", "/w/model.jl")),
        ("bin/train data.bin", ("script", "/w/bin/train")),
        ("nemo-train --lr 1", ("program", "nemo-train")),
        ("make train LR=3", ("program", "make train")),
        ("python", None),
        ("bash", None),
    ],
)
def test_the_program_behind_launchers(words: str, program: tuple[str, str] | None) -> None:
    assert read_command(shlex.split(words), PLACE).program == program


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--lr 3e-4 --steps=100 -b 32 -e5", {"lr": "3e-4", "steps": "100", "b": "32", "e": "5"}),
        ("lr=1 optim.lr=2 ++trainer.max_steps=5", {"lr": "1", "optim.lr": "2", "trainer.max_steps": "5"}),
        ("--lr 1 --lr 2 lr=3", {"lr": "3"}),
        ("--betas 0.9 0.95 --resume --min-lr -1e-5", {"betas": "0.9 0.95", "resume": "", "min_lr": "-1e-5"}),
        ("--maxSteps 3 --Learning-Rate 1", {"max_steps": "3", "learning_rate": "1"}),
        ("--name=a=b", {"name": "a=b"}),
        ("--steps 200 out --tags a b", {"steps": "200", "tags": "a b"}),
    ],
)
def test_settings_in_all_their_forms(words: str, found: dict[str, str]) -> None:
    assert {key: flag.value for key, flag in flags_of(shlex.split(words))[0].items()} == found


SHAPING = (
    "steps max_steps max_iters num_train_epochs epochs total_batch_size warmup_iters warmup_ratio lr learning_rate "
    "min_lr init_lr lr_decay_iters lr_scheduler_type gradient_accumulation_steps per_device_train_batch_size "
    "micro_batch_size seq_len block_size context_length world_size nproc_per_node nnodes num_gpus optimizer adam_beta2 "
    "weight_decay seed data dataset trainer.max_steps optim.lr batchsize max_seq_length"
).split()
OTHERS = (
    "save_steps eval_steps logging_steps log_every eval_batch_size per_device_eval_batch_size save_total_limit "
    "max_hours max_restarts max_new_tokens dataloader_num_workers output_dir resume_from_checkpoint start_epoch "
    "hf_token run_name device log_lr master_port checkpoint_every val_data compile dtype"
).split()


@pytest.mark.parametrize("key", SHAPING)
def test_what_shapes_a_schedule(key: str) -> None:
    assert shapes(key)


@pytest.mark.parametrize("key", OTHERS)
def test_what_does_not(key: str) -> None:
    assert not shapes(key)


@pytest.mark.parametrize(
    ("key", "one", "other", "alike"),
    [
        ("lr", "3e-4", "0.0003", True),
        ("steps", "1000", "1_000", True),
        ("data", "./data", "data/", True),
        ("nesterov", "True", "true", True),
        ("steps", "1000", "1001", False),
        ("seed", "1,2", "12", False),
        ("cuda_visible_devices", "0,1", "2,3", True),
        ("cuda_visible_devices", "0,1", "0", False),
    ],
)
def test_values_that_mean_the_same(key: str, one: str, other: str, alike: bool) -> None:
    assert same(key, one, other) is alike


def test_launchers_have_settings_too() -> None:
    def command(words: str) -> Any:
        return read_command(shlex.split(words), PLACE)

    before = command("torchrun --nproc_per_node 4 --max_restarts 1 train.py --seed 1")
    after = command("torchrun --nproc_per_node 8 --max_restarts 3 train.py --seed 1")
    assert list(differences(before, after).values()) == ["--nproc_per_node 4 -> 8"]
    alone = command("python train.py --seed 1")
    assert list(differences(alone, after).values()) == ["--nproc_per_node (not given) -> 8"]
    before, after = command("mpirun -np 4 python train.py"), command("mpirun -np 8 python train.py")
    assert list(differences(before, after).values()) == ["-np 4 -> 8"]
    before, after = command("nice -n 4 python train.py"), command("nice -n 8 python train.py")
    assert not differences(before, after)


# -- the verb --------------------------------------------------------------------------------------------------------


def test_strict_refuses_before_anything_is_made(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVERNIGHT_HOME", str(house.home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(house.home / "config"))
    monkeypatch.chdir(house.work)
    house.ran("gpt2", "python3 train.py --steps 1000")
    words = ["run", "--name", "next", "--strict", "--", "python3", "train.py", "--steps", "2000", "--resume"]
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert 'strict (flag --strict): changed since run "gpt2" (last at step 320): --steps 1000 -> 2000' in said
    assert "start it as before, or without --strict" in said
    assert sorted(path.name for path in (house.home / "runs").iterdir()) == ["gpt2"]
