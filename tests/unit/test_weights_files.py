"""Counts from files of weights: headers only, nothing loaded or run, and what is no parameter is told apart."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from overnight.errors import UsageError
from overnight.modelsize.files import from_path
from overnight.modelsize.tensornames import role

torch = pytest.importorskip("torch")
stored = pytest.importorskip("safetensors.torch")

WIDTHS = {"F32": 4, "BF16": 2, "I64": 8, "U8": 1, "I32": 4, "F8_E4M3": 1, "BOOL": 1}


def sparse(path: Path, shapes: dict[str, tuple[int, ...]], dtype: str = "F32", **dtypes: str) -> Path:
    """Write a file of safetensors whose numbers are a hole: as long as it should be, and of no size on the disk."""
    at, header = 0, {}
    for name, shape in shapes.items():
        kind = dtypes.get(name, dtype)
        size = WIDTHS[kind]
        for one in shape:
            size *= one
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + at)
    return path


class Toy(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two layers, a table of words, and a head that is the table again."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.wte = torch.nn.Embedding(50, 8)
        self.wpe = torch.nn.Embedding(16, 8)
        self.h = torch.nn.ModuleList(
            torch.nn.ModuleDict({"ln": torch.nn.LayerNorm(8), "c_attn": torch.nn.Linear(8, 24)}) for _ in range(2)
        )
        self.lm_head = torch.nn.Linear(8, 50, bias=False)
        self.register_buffer("running_mean", torch.ones(7))
        if tied:
            self.lm_head.weight = self.wte.weight


BODY = 2 * (16 + 24 * 8 + 24)
TOTAL = 50 * 8 + 16 * 8 + BODY


def test_a_table_that_is_shared_counts_once(tmp_path: Path) -> None:
    model = Toy()
    torch.save(model.state_dict(), tmp_path / "a.pt")
    counts = from_path(tmp_path / "a.pt")
    assert counts.total == sum(one.numel() for one in model.parameters()) == TOTAL
    assert (counts.embedding, counts.position, counts.untied_head, counts.tied) == (400, 128, 0, True)
    assert counts.matmul == counts.active_matmul == 2 * 24 * 8 + 400
    assert counts.norms_and_biases == 2 * (16 + 24)
    assert (counts.layers, counts.width, counts.vocab_size, counts.active) == (2, 8, 50, TOTAL)
    assert counts.kaplan == BODY
    assert f"by dtype: {TOTAL:,} F32" in counts.notes
    assert any("7 numbers in 1 tensors left out: buffers" in note for note in counts.notes)
    assert counts.source == f"the header of {tmp_path / 'a.pt'}"


def test_a_table_that_is_stored_twice_counts_once(tmp_path: Path) -> None:
    model = Toy()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.save(state, tmp_path / "a.pt")
    stored.save_file(state, tmp_path / "a.safetensors")
    for path in tmp_path.iterdir():
        counts = from_path(path)
        assert (counts.total, counts.tied) == (TOTAL, True), path
        assert any("counted once" in note for note in counts.notes)


def test_a_head_of_its_own_counts(tmp_path: Path) -> None:
    model = Toy(tied=False)
    stored.save_file(model.state_dict(), tmp_path / "a.safetensors")
    counts = from_path(tmp_path / "a.safetensors")
    assert (counts.total, counts.tied, counts.untied_head) == (TOTAL + 400, False, 400)
    assert counts.matmul == 2 * 24 * 8 + 400


def test_without_a_head_nobody_can_say_what_is_multiplied(tmp_path: Path) -> None:
    state = Toy().state_dict()
    del state["lm_head.weight"]
    stored.save_file(state, tmp_path / "a.safetensors")
    counts = from_path(tmp_path / "a.safetensors")
    assert (counts.total, counts.matmul, counts.tied) == (TOTAL, None, None)
    assert any("no output head" in note for note in counts.notes)


def test_norms_that_are_alike_are_not_taken_for_one(tmp_path: Path) -> None:
    state = {f"layers.{at}.norm.weight": torch.ones(8, 8) for at in range(5)}
    stored.save_file(state, tmp_path / "a.safetensors")
    assert from_path(tmp_path / "a.safetensors").total == 5 * 64


def trained(model: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters())
    model.wte(torch.tensor([1])).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize("key", ["model", "state_dict", "model_state_dict", "net", "anything"])
def test_the_state_of_an_optimizer_is_left_out(key: str, tmp_path: Path) -> None:
    model = Toy()
    state = {key: model.state_dict(), "optimizer": trained(model), "epoch": 3, "rng_state": torch.get_rng_state()}
    torch.save(state, tmp_path / "last.ckpt")
    assert from_path(tmp_path / "last.ckpt").total == TOTAL


def test_prefixes_of_wrappers_are_no_part_of_a_name(tmp_path: Path) -> None:
    state = {f"module._orig_mod.{name}": value for name, value in Toy().state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "a.pth")
    counts = from_path(tmp_path / "a.pth")
    assert (counts.total, counts.tied, counts.layers) == (TOTAL, True, 2)


def test_averages_are_named_and_left_out(tmp_path: Path) -> None:
    state, copy = Toy().state_dict(), Toy().state_dict()
    torch.save({"model": state, "ema": copy, "teacher": copy}, tmp_path / "a.pt")
    counts = from_path(tmp_path / "a.pt")
    assert counts.total == TOTAL
    assert any("ema, teacher left out" in note for note in counts.notes)
    torch.save({"weights_of_mine": state, "model_ema": copy}, tmp_path / "b.pt")
    counts = from_path(tmp_path / "b.pt")
    assert counts.total == TOTAL
    assert any("averaged copies" in note for note in counts.notes)


def test_a_whole_module_is_counted_without_being_made(tmp_path: Path) -> None:
    torch.save(Toy(), tmp_path / "a.pt")
    assert from_path(tmp_path / "a.pt").total == TOTAL


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(Trap.place),)

    place = Path()


def test_nothing_is_run(tmp_path: Path) -> None:
    Trap.place = tmp_path / "sprung"
    torch.save({"model": Toy().state_dict(), "trap": Trap()}, tmp_path / "a.pt")
    assert from_path(tmp_path / "a.pt").total == TOTAL
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UsageError):
        from_path(tmp_path / "b.pt")
    assert not Trap.place.exists()


def test_nanogpt_says_itself_how_it_is_built(tmp_path: Path) -> None:
    args = {"n_layer": 2, "n_head": 4, "n_embd": 8, "block_size": 16, "vocab_size": 50, "bias": False, "dropout": 0.0}
    state = {"transformer.wte.weight": torch.randn(50, 8), "transformer.wpe.weight": torch.randn(16, 8)}
    for at in range(2):
        shapes = {"ln_1": (8,), "ln_2": (8,), "attn.c_attn": (24, 8), "attn.c_proj": (8, 8), "mlp.c_fc": (32, 8),
                  "mlp.c_proj": (8, 32)}  # fmt: skip
        state |= {f"transformer.h.{at}.{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
        state[f"transformer.h.{at}.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    state["transformer.ln_f.weight"] = torch.randn(8)
    state["lm_head.weight"] = state["transformer.wte.weight"]
    torch.save({"model": state, "optimizer": {}, "model_args": args, "iter_num": 5}, tmp_path / "ckpt.pt")
    counts = from_path(tmp_path / "ckpt.pt")
    assert counts.total == 50 * 8 + 16 * 8 + 2 * (12 * 64 + 16) + 8
    assert (counts.heads, counts.layers, counts.width, counts.context) == (4, 2, 8, 16)
    assert "ckpt.pt holds as many" in counts.notes
    assert "model_args" in counts.source
    torch.save({"model": state, "model_args": {**args, "vocab_size": 64}}, tmp_path / "ckpt.pt")
    assert any("fewer than its config says" in note for note in from_path(tmp_path / "ckpt.pt").notes)


GPT2 = {
    "wte.weight": (50257, 768), "wpe.weight": (1024, 768), "ln_f.weight": (768,), "ln_f.bias": (768,),
    **{
        f"h.{at}.{name}": shape
        for at in range(12)
        for name, shape in {
            "attn.bias": (1, 1, 1024, 1024), "attn.c_attn.weight": (768, 2304), "attn.c_attn.bias": (2304,),
            "attn.c_proj.weight": (768, 768), "attn.c_proj.bias": (768,), "ln_1.weight": (768,), "ln_1.bias": (768,),
            "ln_2.weight": (768,), "ln_2.bias": (768,), "mlp.c_fc.weight": (768, 3072), "mlp.c_fc.bias": (3072,),
            "mlp.c_proj.weight": (3072, 768), "mlp.c_proj.bias": (768,),
        }.items()
    },
}  # fmt: skip


def test_masks_of_the_public_gpt_2_are_no_parameters(tmp_path: Path) -> None:
    """137,022,720 numbers lie in its file, 124,439,808 of them parameters."""
    path = sparse(tmp_path / "model.safetensors", GPT2)
    counts = from_path(path)
    assert counts.total == 124_439_808
    assert any("12,582,912 numbers in 12 tensors left out: buffers" in note for note in counts.notes)
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    counts = from_path(tmp_path)
    assert (counts.total, counts.matmul, counts.heads) == (124_439_808, 123_532_032, 12)
    assert "model.safetensors holds as many" in counts.notes


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip


def llama_shapes(layers: int = 32, d: int = 4096, kv: int = 1024, f: int = 14336, v: int = 128256) -> dict[str, Any]:
    """Names and shapes of a public Llama; those of Llama-3-8B."""
    found: dict[str, Any] = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,), "lm_head.weight": (v, d)}
    for at in range(layers):
        front = f"model.layers.{at}."
        attention = {"q_proj": (d, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, d)}
        found |= {f"{front}self_attn.{name}.weight": shape for name, shape in attention.items()}
        inner = {"gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f)}
        found |= {f"{front}mlp.{name}.weight": shape for name, shape in inner.items()}
        found |= {f"{front}{name}.weight": (d,) for name in ("input_layernorm", "post_attention_layernorm")}
    return found


def sharded(folder: Path, shapes: dict[str, Any], dtype: str = "BF16") -> Path:
    names = list(shapes)
    half = len(names) // 2
    where = {}
    for number, part in enumerate((names[:half], names[half:]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        sparse(folder / file, {name: shapes[name] for name in part}, dtype)
        where |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return index


def test_sixteen_gigabytes_are_counted_by_their_headers(tmp_path: Path) -> None:
    index = sharded(tmp_path, llama_shapes())
    for path in (index, tmp_path):
        counts = from_path(path)
        assert counts.total == 8_030_261_248
        assert (counts.matmul, counts.untied_head, counts.tied) == (7_504_658_432, 525_336_576, False)
        assert (counts.layers, counts.width, counts.vocab_size) == (32, 4096, 128_256)
        assert "by dtype: 8,030,261,248 BF16" in counts.notes
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    counts = from_path(tmp_path)
    assert (counts.total, counts.kv_heads, counts.family) == (8_030_261_248, 8, "llama")
    assert "model.safetensors.index.json holds as many" in counts.notes


def test_a_config_leads_and_what_lies_beyond_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 1}))
    sparse(tmp_path / "model.safetensors", llama_shapes(2), "BF16")
    counts = from_path(tmp_path)
    assert counts.layers == 1
    assert any("218,112,000 more than its config says" in note for note in counts.notes)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2, "tie_word_embeddings": True}))
    assert any("tied output head a second time" in note for note in from_path(tmp_path).notes)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "martian", "hidden_size": 4}))
    counts = from_path(tmp_path)
    assert counts.total == 2 * 525_336_576 + 4096 + 2 * 218_112_000
    assert any("martian" in note for note in counts.notes)


def test_a_config_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for path in (tmp_path, tmp_path / "config.json"):
        assert from_path(path).total == 8_030_261_248
    assert from_path(tmp_path, pad_to=1000).vocab_size == 129_000


def test_experts_are_noticed_and_what_is_active_is_not_guessed(tmp_path: Path) -> None:
    shapes = llama_shapes(2, d=64, kv=16, f=128, v=100)
    for at in range(2):
        for name in ("gate_proj", "up_proj", "down_proj"):
            shapes.pop(f"model.layers.{at}.mlp.{name}.weight")
        for expert in range(8):
            shapes |= {
                f"model.layers.{at}.block_sparse_moe.experts.{expert}.w{number}.weight": (128, 64)
                for number in (1, 2, 3)
            }
    counts = from_path(sparse(tmp_path / "a.safetensors", shapes))
    assert (counts.experts, counts.active, counts.active_matmul) == (8, None, None)
    assert counts.total == sum(int(torch.Size(one).numel()) for one in shapes.values())
    fused = {**llama_shapes(1, d=64, kv=16, f=128, v=100), "model.layers.0.mlp.experts.gate_up_proj": (16, 256, 64)}
    counts = from_path(sparse(tmp_path / "b.safetensors", fused))
    assert (counts.experts, counts.active) == (16, None)


LORA = {
    f"base_model.model.model.layers.{at}.self_attn.{name}.lora_{part}.weight": shape
    for at in range(32)
    for name in ("q_proj", "v_proj")
    for part, shape in (("A", (8, 4096)), ("B", (4096, 8)))
}
LLAMA2 = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip


def adapter(folder: Path, base: str | None) -> Path:
    folder.mkdir()
    sparse(folder / "adapter_model.safetensors", LORA)
    value = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(value))
    return folder


def test_an_adapter_beside_the_model_it_is_for(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(LLAMA2))
    folder = adapter(tmp_path / "adapter", str(base))
    for path in (folder, folder / "adapter_config.json", folder / "adapter_model.safetensors"):
        counts = from_path(path)
        assert (counts.trainable, counts.total) == (4_194_304, 6_738_415_616 + 4_194_304)
        assert counts.active_matmul == 6_607_077_376 + 4_194_304
        assert any("4,194,304 trained weights of LORA, rank 8" in note for note in counts.notes)


def test_an_adapter_for_a_model_known_by_name(tmp_path: Path) -> None:
    counts = from_path(adapter(tmp_path / "adapter", "meta-llama/Llama-2-7b-hf"))
    assert (counts.trainable, counts.total) == (4_194_304, 6_738_415_616 + 4_194_304)


@pytest.mark.parametrize("base", [None, "", "nobody/has-this-model", "\0"])
def test_an_adapter_whose_model_is_unknown(base: str | None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--trainable-params 4194304"):
        from_path(adapter(tmp_path / "adapter", base))


def test_an_adapter_for_itself_ends(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--config"):
        from_path(adapter(tmp_path / "adapter", str(tmp_path / "adapter")))


def test_an_adapter_without_its_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds an adapter.*--trainable-params 4194304"):
        from_path(sparse(tmp_path / "x.safetensors", LORA))


def test_adapters_among_the_weights_of_a_model(tmp_path: Path) -> None:
    shapes = {f"base_model.model.{name}": shape for name, shape in llama_shapes(32, kv=4096, f=11008, v=32000).items()}
    sparse(tmp_path / "model.safetensors", {**shapes, **LORA}, "BF16")
    counts = from_path(tmp_path)
    assert (counts.total, counts.trainable) == (6_742_609_920, 4_194_304)
    assert counts.matmul == 6_607_077_376 + 4_194_304
    (tmp_path / "config.json").write_text(json.dumps(LLAMA2))
    counts = from_path(tmp_path)
    assert (counts.total, counts.trainable, counts.heads) == (6_742_609_920, 4_194_304, 32)


@pytest.mark.parametrize(
    "packed",
    [
        {"model.layers.0.q_proj.qweight": "I32", "model.layers.0.q_proj.scales": "F32"},
        {"model.layers.0.q_proj.weight": "U8", "model.layers.0.q_proj.weight.absmax": "F32"},
    ],
)
def test_packed_weights_are_not_counted(packed: dict[str, str], tmp_path: Path) -> None:
    path = sparse(tmp_path / "model.safetensors", dict.fromkeys(packed, (8, 8)), **packed)
    with pytest.raises(UsageError, match=r"several lie in one number.*--config"):
        from_path(path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    counts = from_path(tmp_path)
    assert counts.total == 8_030_261_248
    assert any("packed" in note for note in counts.notes)


def test_eight_bit_floats_are_weights_and_their_scales_are_not(tmp_path: Path) -> None:
    names = {"model.layers.0.q_proj.weight": "F8_E4M3", "model.layers.0.q_proj.weight_scale_inv": "F32"}
    path = sparse(tmp_path / "a.safetensors", dict.fromkeys(names, (8, 8)), **names)
    counts = from_path(path)
    assert counts.total == 64
    assert "by dtype: 64 F8_E4M3" in counts.notes


def test_a_folder_of_a_trainer_beside_its_optimizer(tmp_path: Path) -> None:
    model = Toy()
    stored.save_file(model.state_dict() | {"lm_head.weight": torch.randn(50, 8)}, tmp_path / "model.safetensors")
    torch.save(trained(model), tmp_path / "optimizer.pt")
    torch.save(torch.get_rng_state(), tmp_path / "rng_state.pth")
    torch.save({"a": 1}, tmp_path / "training_args.bin")
    assert from_path(tmp_path).total == TOTAL + 400


def test_shards_of_torch(tmp_path: Path) -> None:
    state = Toy(tied=False).state_dict()
    names = list(state)
    where = {}
    for at in range(2):
        torch.save(OrderedDict((name, state[name]) for name in names[at::2]), tmp_path / f"{at}.bin")
        where |= dict.fromkeys(names[at::2], f"{at}.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    assert from_path(tmp_path).total == TOTAL + 400


def damaged(kind: str, folder: Path) -> Path:
    good = stored.save(Toy(tied=False).state_dict())
    path = folder / "model.safetensors"
    if kind == "a shard is missing":
        index = sharded(folder, llama_shapes(1, d=8, kv=8, f=8, v=8))
        (folder / "model-00002-of-00002.safetensors").unlink()
        return index
    if kind == "a tensor is missing":
        index = sharded(folder, llama_shapes(1, d=8, kv=8, f=8, v=8))
        value = json.loads(index.read_text())
        value["weight_map"]["more"] = "model-00001-of-00002.safetensors"
        index.write_text(json.dumps(value))
        return index
    if kind == "an index leads out":
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
        return index
    if kind == "of torch before 1.6":
        torch.save(Toy().state_dict(), folder / "a.pt", _use_new_zipfile_serialization=False)
        return folder / "a.pt"
    if kind == "torch, cut off":
        torch.save(Toy().state_dict(), folder / "a.pt")
        data = (folder / "a.pt").read_bytes()
        (folder / "a.pt").write_bytes(data[: len(data) // 2])
        return folder / "a.pt"
    path.write_bytes({"empty": b"", "cut off": good[:-5], "words": b"hello" * 99, "no header": b"\xff" * 64}[kind])
    return path


@pytest.mark.parametrize(
    "kind",
    ["a shard is missing", "a tensor is missing", "an index leads out", "of torch before 1.6", "torch, cut off",
     "empty", "cut off", "words", "no header"],
)  # fmt: skip
def test_what_is_damaged_is_said_in_one_sentence(kind: str, tmp_path: Path) -> None:
    path = damaged(kind, tmp_path)
    with pytest.raises(UsageError) as caught:
        from_path(path)
    said = str(caught.value)
    assert path.name in said
    assert "--config" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", "{", "no config"),
        ("config.json", "[1]", "no config"),
        ("config.json", '{"model_type": "martian", "hidden_size": 3}', "martian"),
        ("config.json", '{"model_type": "llama", "hidden_size": -3}', "hidden_size"),
        ("adapter_config.json", "{}", "no weights of its adapter"),
        ("notes.txt", "hello", "holds no config.json and no weights"),
        (".metadata", "hello", "torch.distributed"),
    ],
)
def test_folders_with_nothing_to_count(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said):
        from_path(tmp_path)


def test_two_models_in_one_folder(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        torch.save(Toy().state_dict(), tmp_path / name)
    with pytest.raises(UsageError, match=r"a\.pt, b\.pt"):
        from_path(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert from_path(tmp_path).total == 8_030_261_248


@pytest.mark.parametrize("name", ["missing", "a\0b"])
def test_what_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--config"):
        from_path(tmp_path / name)


def test_pipes_and_links_to_nowhere(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "link.pt").symlink_to("nowhere")
    for name in ("pipe.pt", "link.pt"):
        with pytest.raises(UsageError, match=name):
            from_path(tmp_path / name)


def test_no_weights_in_it(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    with pytest.raises(UsageError, match="no weights"):
        from_path(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "expected"),
    [
        ("random_projection.weight", "F32", (8, 8), "weight"),
        ("resampler.latents", "F32", (8, 8), "weight"),
        ("model.layers.0.mlp.gate.e_score_correction_bias", "F32", (8,), "buffer"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", (8,), "buffer"),
        ("h.0.attn.bias", "F32", (1, 1, 16, 16), "buffer"),
        ("h.0.attn.c_attn.bias", "F32", (16,), "weight"),
        ("bn.num_batches_tracked", "I64", (), "buffer"),
        ("optimizer.state.0.exp_avg", "F32", (8, 8), "optimizer"),
        ("model.decoder.layers.0.fc1.weight", "I8", (8, 8), "weight"),
        ("model.layers.0.q_proj.lora_A.default.weight", "F32", (8, 8), "adapter"),
        ("base_model.model.score.modules_to_save.default.weight", "F32", (8, 8), "adapter"),
        ("model.layers.0.mlp.experts.down_proj_blocks", "U8", (4, 8, 8, 16), "packed"),
        ("schema.weight", "F32", (8, 8), "weight"),
        ("ema_model.layer.weight", "F32", (8, 8), "average"),
    ],
)
def test_what_a_tensor_is(name: str, dtype: str, shape: tuple[int, ...], expected: str) -> None:
    assert role(name, dtype, shape) == expected


FAMILIES = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "vocab_size": 96},
    "llama": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 48, "vocab_size": 96, "tie_word_embeddings": False},
    "qwen2": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 48, "vocab_size": 96, "tie_word_embeddings": True},
    "gemma2": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
               "head_dim": 16, "intermediate_size": 48, "vocab_size": 96},
    "gpt_neox": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
                 "vocab_size": 96},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 96},
    "mixtral": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "intermediate_size": 48, "vocab_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves(family: str, tmp_path: Path) -> None:
    """Its own parameters, by its own files, with and without the config beside them."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    kind = transformers.AutoModelForSeq2SeqLM if family == "t5" else transformers.AutoModelForCausalLM
    model = kind.from_config(config)
    total = sum(one.numel() for one in model.parameters())
    model.save_pretrained(tmp_path)
    torch.save({"model": model.state_dict(), "step": 3}, tmp_path / "last.pt")
    counts = from_path(tmp_path)
    assert counts.total == total
    assert "model.safetensors holds as many" in counts.notes
    for name in ("model.safetensors", "last.pt"):
        bare = from_path(tmp_path / name)
        assert bare.total == total, name
        assert bare.matmul in (None, counts.matmul), name
        assert bare.active in (None, counts.active), name
        assert bare.kaplan in (None, counts.kaplan), name
    if family in ("gpt2", "llama", "qwen2", "gemma2"):
        assert bare.matmul == counts.matmul
