"""Checkpoints there and back, to the bit; what is not whole or not known is refused before anything is written."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from checkpoints import arrays, random_params, rewrite, same, tensors, write
from family_architectures import SMALL

from moejax.huggingface import FAMILIES
from moejax.huggingface.checkpoint import INDEX
from moejax.huggingface.conversion import check_stock, from_huggingface, to_huggingface
from moejax.model import transformer
from moejax.weights.folder import load_weights, save_weights
from moejax.weights.safetensors import Kind, TensorFile


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_bit_comes_back(family, dtype, tmp_path):
    """MaxText #3231, #3868."""
    theirs = write(tmp_path / "theirs", family, dtype=dtype)
    done = from_huggingface(theirs, tmp_path / "ours")
    assert done.family == family
    to_huggingface(tmp_path / "ours", tmp_path / "back", shard_bytes=500)
    assert tensors(tmp_path / "back") == tensors(theirs)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["torch_dtype"] == np.dtype(dtype).name
    assert FAMILIES[family].architecture(config) == SMALL[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_of_ours_come_back_to_the_bit(family, tmp_path):
    params = random_params(SMALL[family])
    bias = transformer.init_expert_bias(SMALL[family])
    save_weights(tmp_path / "ours", SMALL[family], params, bias)
    to_huggingface(tmp_path / "ours", tmp_path / "theirs", family=family)
    from_huggingface(tmp_path / "theirs", tmp_path / "back")
    found = load_weights(tmp_path / "back")
    same(found.params, params)
    assert (found.expert_bias is None) == (bias is None)


def test_a_large_checkpoint_is_several_files_with_an_index(tmp_path):
    theirs = write(tmp_path / "theirs", "olmoe")
    from_huggingface(theirs, tmp_path / "ours")
    done = to_huggingface(tmp_path / "ours", tmp_path / "back", shard_bytes=1000)
    index = json.loads((tmp_path / "back" / INDEX).read_text())
    files = sorted((tmp_path / "back").glob("model-*.safetensors"))
    assert len(files) > 2
    assert files[-1].name == f"model-{len(files):05}-of-{len(files):05}.safetensors"
    for file in files:
        with TensorFile(file) as opened:
            assert opened.metadata == {"format": "pt"}
            assert {index["weight_map"][name] for name in opened.kinds} == {file.name}
            sizes = [kind.nbytes for kind in opened.kinds.values()]
            assert sum(sizes) <= 1000 or len(sizes) == 1
    assert index["metadata"]["total_size"] == done.nbytes
    from_huggingface(tmp_path / "back", tmp_path / "again")
    same(load_weights(tmp_path / "again").params, load_weights(tmp_path / "ours").params)


def test_another_type_rounds_and_the_expert_bias_stays(tmp_path):
    theirs = write(tmp_path / "theirs", "deepseek_v3")
    from_huggingface(theirs, tmp_path / "ours", dtype="bfloat16")
    exact, rounded = tensors(theirs), {}
    to_huggingface(tmp_path / "ours", tmp_path / "back")
    rounded = tensors(tmp_path / "back")
    for name, (dtype, _, data) in rounded.items():
        wide = np.frombuffer(exact[name][2], np.float32)
        if name.endswith("e_score_correction_bias"):
            assert (dtype, data) == ("float32", exact[name][2])
        else:
            assert data == wide.astype(ml_dtypes.bfloat16).tobytes()


def test_what_float16_cannot_hold_is_refused(tmp_path):
    theirs = write(tmp_path / "theirs", "mixtral")
    from_huggingface(theirs, tmp_path / "ours")
    weights = load_weights(tmp_path / "ours")
    save_weights(tmp_path / "large", weights.architecture, jax.tree.map(lambda p: p * 1e6, weights.params))
    with pytest.raises(ValueError, match="float16 cannot hold"):
        to_huggingface(tmp_path / "large", tmp_path / "back", dtype="float16")
    assert not (tmp_path / "back").exists()


def test_where_stacked_tensors_differ_in_type_the_wider_one_is_kept(tmp_path):
    def first_norm_wide(kinds):
        name = "model.layers.0.input_layernorm.weight"
        kinds[name] = Kind(np.dtype(np.float32), kinds[name].shape)

    theirs = write(tmp_path / "theirs", "mixtral", dtype=ml_dtypes.bfloat16, change=first_norm_wide)
    from_huggingface(theirs, tmp_path / "ours")
    with TensorFile(tmp_path / "ours" / "weights.safetensors") as file:
        wide = {name for name, kind in file.kinds.items() if kind.dtype == np.float32}
    assert wide == {"moe_layers.attention_norm"}


def test_tokenizer_and_ignored_options_travel_along(tmp_path):
    theirs = write(
        tmp_path / "theirs",
        "qwen3_moe",
        config={"eos_token_id": 3, "max_position_embeddings": 77, "transformers_version": "1.0"},
    )
    for name in ("tokenizer.json", "merges.txt", "generation_config.json", "README.md"):
        (theirs / name).write_text(f"contents of {name}")
    done = from_huggingface(theirs, tmp_path / "ours")
    assert set(done.files) == {"tokenizer.json", "merges.txt", "generation_config.json"}
    to_huggingface(tmp_path / "ours", tmp_path / "back")
    for name in done.files:
        assert (tmp_path / "back" / name).read_text() == f"contents of {name}"
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["eos_token_id"] == 3
    assert config["max_position_embeddings"] == 77
    assert "transformers_version" not in config


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_are_those_beside_our_weights_and_never_those_of_the_familys_first_model(family, tmp_path):
    bias = transformer.init_expert_bias(SMALL[family])
    save_weights(tmp_path / "ours", SMALL[family], random_params(SMALL[family]), bias)
    for ids in ({}, {"bos_token_id": 7, "eos_token_id": 7, "pad_token_id": 7}):
        (tmp_path / "ours" / "generation_config.json").write_text(json.dumps(ids))
        to_huggingface(tmp_path / "ours", tmp_path / f"theirs{len(ids)}", family=family)
        written = json.loads((tmp_path / f"theirs{len(ids)}" / "config.json").read_text())
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        # An embedding of padding is never trained in transformers.
        assert [written[name] for name in names] == [ids.get(names[0]), ids.get(names[1]), None]
        assert json.loads((tmp_path / f"theirs{len(ids)}" / "generation_config.json").read_text()) == ids


def test_the_family_is_the_one_the_weights_came_from_or_one_that_can(tmp_path):
    plain = SMALL["qwen3_moe"].replace(qk_norm=False, num_dense_layers=0, dense_hidden=0)
    params = random_params(plain)
    save_weights(tmp_path / "ours", plain, params)
    assert to_huggingface(tmp_path / "ours", tmp_path / "theirs").family == "mixtral"
    with pytest.raises(ValueError, match="olmoe cannot express"):
        to_huggingface(tmp_path / "ours", tmp_path / "olmoe", family="olmoe")
    with pytest.raises(ValueError, match=r"Unknown family 'llama'\. Choose from mixtral, .*gpt_oss"):
        to_huggingface(tmp_path / "ours", tmp_path / "llama", family="llama")


def test_an_architecture_of_no_family_is_told_each_familys_reason():
    with pytest.raises(ValueError, match="transformers has no class for this") as raised:
        check_stock(SMALL["mixtral"].replace(positions="alibi"))
    assert all(family in str(raised.value) for family in FAMILIES)
    # Positions are what mixtral has otherwise, and nothing else.
    assert str(raised.value).splitlines()[1].strip().startswith("mixtral cannot express positions = 'alibi'")


def test_without_an_expert_bias_theirs_is_zero(tmp_path):
    architecture = SMALL["deepseek_v3"].replace(expert_bias=False)
    save_weights(tmp_path / "ours", architecture, random_params(architecture))
    to_huggingface(tmp_path / "ours", tmp_path / "theirs")
    from_huggingface(tmp_path / "theirs", tmp_path / "back")
    found = load_weights(tmp_path / "back")
    assert found.architecture == SMALL["deepseek_v3"]
    assert not np.any(found.expert_bias)


def test_a_module_of_multi_token_prediction_has_deepseeks_names_and_the_models_embedding_and_head(tmp_path):
    theirs = write(tmp_path / "theirs", "deepseek_v3")
    found, ours, name = tensors(theirs), SMALL["deepseek_v3"], "model.layers.3."
    of_module = {key.removeprefix(name) for key in found if key.startswith(name)}
    block = {key.removeprefix("model.layers.2.") for key in found if key.startswith("model.layers.2.")}
    around = {"enorm", "hnorm", "eh_proj", "embed_tokens", "shared_head.norm", "shared_head.head"}
    assert of_module == block | {f"{part}.weight" for part in around}
    assert found[name + "eh_proj.weight"][1] == (ours.model_dim, 2 * ours.model_dim)
    from_huggingface(theirs, tmp_path / "ours")
    weights = load_weights(tmp_path / "ours")
    # The embedding's half comes first, and a torch matrix has its outputs in front.
    joined = np.frombuffer(found[name + "eh_proj.weight"][2], np.float32).reshape(8, 16)
    np.testing.assert_array_equal(weights.params["mtp_layers"]["projection"][0, 0], joined[:, :8].T)
    np.testing.assert_array_equal(weights.params["mtp_layers"]["projection"][0, 1], joined[:, 8:].T)
    bias = np.frombuffer(found[name + "mlp.gate.e_score_correction_bias"][2], np.float32)
    np.testing.assert_array_equal(weights.expert_bias[-1], bias)


def test_a_checkpoint_without_the_copies_or_the_modules_is_read_and_a_copy_that_differs_is_refused(tmp_path):
    copies = ("model.layers.3.embed_tokens.weight", "model.layers.3.shared_head.head.weight")
    whole = write(tmp_path / "whole", "deepseek_v3")
    lean = write(tmp_path / "lean", "deepseek_v3", change=lambda kinds: [kinds.pop(name) for name in copies])
    from_huggingface(lean, tmp_path / "from lean")
    assert load_weights(tmp_path / "from lean").architecture == SMALL["deepseek_v3"]
    without = SMALL["deepseek_v3"].without_mtp
    saved = write(tmp_path / "saved", "deepseek_v3", architecture=without, config={"num_nextn_predict_layers": 1})
    from_huggingface(saved, tmp_path / "from saved")
    assert load_weights(tmp_path / "from saved").architecture == without
    numbers = arrays(whole / "model.safetensors")
    numbers[copies[1]] = numbers[copies[1]] + 1
    rewrite(whole / "model.safetensors", numbers)
    with pytest.raises(
        ValueError, match=r"shared_head\.head\.weight differs from lm_head\.weight.*to 0 in config\.json"
    ):
        from_huggingface(whole, tmp_path / "refused")


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"gpt_oss"}))
def test_experts_of_a_layer_in_one_tensor_are_the_same_model(family, tmp_path):
    theirs = write(tmp_path / "theirs", family)
    from_huggingface(theirs, tmp_path / "ours")
    numbers = arrays(theirs / "model.safetensors")
    module, gate, up, down = "mlp", "gate_proj", "up_proj", "down_proj"
    if family == "mixtral":
        module, gate, up, down = "block_sparse_moe", "w1", "w3", "w2"
    held = {name.replace(module, "mlp"): array for name, array in numbers.items() if ".experts." not in name}
    for layer in {name.partition(f".{module}.experts.")[0] for name in numbers if ".experts." in name}:
        stacked = [
            np.stack([numbers[f"{layer}.{module}.experts.{expert}.{part}.weight"] for expert in range(4)])
            for part in (gate, up, down)
        ]
        held[f"{layer}.mlp.experts.gate_up_proj"] = np.concatenate(stacked[:2], axis=1)
        held[f"{layer}.mlp.experts.down_proj"] = stacked[2]
    rewrite(theirs / "model.safetensors", held)
    from_huggingface(theirs, tmp_path / "again")
    same(load_weights(tmp_path / "again").params, load_weights(tmp_path / "ours").params)


def test_a_stored_copy_of_tied_embeddings_is_read_once_and_one_that_differs_is_refused(tmp_path):
    tied = SMALL["mixtral"].replace(tied_embeddings=True)
    theirs = write(tmp_path / "theirs", "mixtral", architecture=tied)
    assert "lm_head.weight" in tensors(theirs)
    from_huggingface(theirs, tmp_path / "ours")
    to_huggingface(tmp_path / "ours", tmp_path / "back")
    without = tensors(theirs)
    without.pop("lm_head.weight")
    assert tensors(tmp_path / "back") == without
    from_huggingface(tmp_path / "back", tmp_path / "again")
    numbers = arrays(theirs / "model.safetensors")
    numbers["lm_head.weight"] = numbers["lm_head.weight"] + 1
    rewrite(theirs / "model.safetensors", numbers)
    with pytest.raises(
        ValueError,
        match=r"lm_head\.weight differs from model\.embed_tokens\.weight.*set tie_word_embeddings to false in",
    ):
        from_huggingface(theirs, tmp_path / "refused")


@pytest.fixture
def shards(tmp_path):
    """A checkpoint in several files, its index, and the weights that it holds."""
    from_huggingface(write(tmp_path / "theirs", "mixtral"), tmp_path / "ours")
    to_huggingface(tmp_path / "ours", tmp_path / "shards", shard_bytes=1000)
    return tmp_path / "shards"


def test_an_exported_folder_has_no_files_of_moejax_itself(shards):
    assert not list(shards.glob(".*"))


def norm_read(folder, out):
    """The first number of the last norm, and the remarks."""
    remarks = from_huggingface(folder, out).remarks
    return load_weights(out).params["final_norm"][0], remarks


@pytest.mark.parametrize("other", [0, -1])
def test_the_index_decides_which_file_has_a_tensor_and_others_are_reported(other, shards, tmp_path):
    right, _ = norm_read(shards, tmp_path / "right")
    index = json.loads((shards / INDEX).read_text())["weight_map"]
    files = sorted(set(index.values()) - {index["model.norm.weight"]})
    stale = arrays(shards / files[other])
    rewrite(shards / files[other], stale | {"model.norm.weight": np.full(8, 7, np.float32)})
    number, remarks = norm_read(shards, tmp_path / "out")
    assert number == right
    (remark,) = remarks
    assert f"1 tensors are in several files; each is read from the one in {INDEX}: model.norm.weight" in remark


def test_an_index_that_has_a_tensor_where_it_is_not_or_does_not_choose_is_refused(shards, tmp_path):
    index = json.loads((shards / INDEX).read_text())
    other = max(set(index["weight_map"].values()) - {index["weight_map"]["model.norm.weight"]})
    moved = {**index["weight_map"], "model.norm.weight": other}
    (shards / INDEX).write_text(json.dumps({"weight_map": moved}))
    with pytest.raises(ValueError, match=rf"in the wrong file, such as model\.norm\.weight in {other}"):
        from_huggingface(shards, tmp_path / "out")
    rewrite(shards / other, arrays(shards / other) | {"model.norm.weight": np.ones(8, np.float32)})
    del moved["model.norm.weight"]
    (shards / INDEX).write_text(json.dumps({"weight_map": moved}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight is in .*does not name one of them"):
        from_huggingface(shards, tmp_path / "out")


@pytest.mark.parametrize("shards_left", [True, False])
def test_one_file_beside_an_older_index_is_read_and_the_index_is_named(shards_left, shards, tmp_path):
    new = arrays(tmp_path / "theirs" / "model.safetensors")
    new["model.norm.weight"] = np.full(8, 3, np.float32)
    rewrite(shards / "model.safetensors", new)
    if not shards_left:
        for path in shards.glob("model-*"):
            path.unlink()
    assert norm_read(shards, tmp_path / "out") == (
        3,
        (f"model.safetensors is read, as in transformers; remove {INDEX}, which names other files.",),
    )
    (shards / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(new, "model.safetensors")}))
    assert norm_read(shards, tmp_path / "again") == (3, ())


def test_an_index_of_an_earlier_save_is_named(shards, tmp_path):
    for number, path in enumerate(sorted(shards.glob("model-*"))):
        path.rename(shards / f"model-{number}-saved-again.safetensors")
    with pytest.raises(ValueError, match=r"may be outdated: it does not name model-0-saved-again"):
        from_huggingface(shards, tmp_path / "out")


def test_a_family_without_a_place_for_the_modules_refuses_them(tmp_path):
    architecture = SMALL["qwen3_moe"].replace(num_mtp_layers=1)
    save_weights(tmp_path / "ours", architecture, random_params(architecture))
    with pytest.raises(ValueError, match=r"qwen3_moe cannot express num_mtp_layers = 1 \(nearest value: 0\)"):
        to_huggingface(tmp_path / "ours", tmp_path / "theirs", family="qwen3_moe")


def test_layers_behind_the_last_that_the_config_does_not_name_are_left_out_and_said(tmp_path):
    def tables(kinds):
        kinds["model.layers.0.self_attn.rotary_emb.inv_freq"] = Kind(np.dtype(np.float32), (2,))

    theirs = write(tmp_path / "theirs", "deepseek_v3", change=tables, config={"num_nextn_predict_layers": 0})
    done = from_huggingface(theirs, tmp_path / "ours")
    assert "model.layers.0.self_attn.rotary_emb.inv_freq" in done.left_out
    assert "model.layers.3.eh_proj.weight" in done.left_out
    assert load_weights(tmp_path / "ours").architecture == SMALL["deepseek_v3"].without_mtp
    to_huggingface(tmp_path / "ours", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["num_nextn_predict_layers"] == 0


def _lacks(kinds):
    del kinds["model.layers.1.block_sparse_moe.experts.2.w3.weight"]


def _extra(kinds):
    kinds["model.layers.3.adapter.weight"] = Kind(np.dtype(np.float32), (1,))


def _shape(kinds):
    kinds["model.norm.weight"] = Kind(np.dtype(np.float32), (9,))


def _type(kinds):
    kinds["model.norm.weight"] = Kind(np.dtype(ml_dtypes.float8_e4m3fn), (8,))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_lacks, r"lacks 1 tensors .*layers\.1\.block_sparse_moe\.experts\.2\.w3\.weight"),
        (_extra, r"has 1 tensors .*layers\.3\.adapter\.weight"),
        (_shape, r"model\.norm\.weight has the shape \[9\].*requires \[8\]"),
        (_type, r"model\.norm\.weight is float8_e4m3fn; moejax reads float32, bfloat16, float16"),
    ],
)
def test_a_checkpoint_of_other_tensors_is_refused_and_they_are_named(tmp_path, change, said):
    theirs = write(tmp_path / "theirs", "mixtral", change=change)
    with pytest.raises(ValueError, match=said):
        from_huggingface(theirs, tmp_path / "ours")
    assert {path.name for path in tmp_path.iterdir()} == {"theirs"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"model_type": "llama"},
            r"moejax does not support model_type 'llama'; supported are mixtral, .*gpt_oss",
        ),
        ({"quantization_config": {"quant_method": "mxfp4"}}, r"quantized \(mxfp4\).*save it again"),
        ({"hidden_act": "relu"}, r"config\.json: hidden_act is 'relu'"),
        ({"num_hidden_layers": 4}, "lacks 19 tensors"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, config, said):
    theirs = write(tmp_path / "theirs", "mixtral", config=config)
    with pytest.raises(ValueError, match=said):
        from_huggingface(theirs, tmp_path / "ours")


def test_a_folder_that_is_no_checkpoint_or_a_part_of_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"it has no config\.json"):
        from_huggingface(tmp_path, tmp_path / "ours")
    theirs = write(tmp_path / "theirs", "olmoe")
    from_huggingface(theirs, tmp_path / "ours")
    to_huggingface(tmp_path / "ours", tmp_path / "back", shard_bytes=1000)
    next(iter(sorted((tmp_path / "back").glob("model-*")))).unlink()
    with pytest.raises(ValueError, match=r"is incomplete: .* names model-00001"):
        from_huggingface(tmp_path / "back", tmp_path / "again")
    (theirs / "model.safetensors").unlink()
    (theirs / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match=r"holds no weights.*a pickle: load it with transformers"):
        from_huggingface(theirs, tmp_path / "again")
    (theirs / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        from_huggingface(theirs, tmp_path / "again")


def test_an_interrupted_conversion_leaves_no_folder_and_can_be_repeated(tmp_path):
    theirs = write(tmp_path / "theirs", "mixtral")

    def stop(name, done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        from_huggingface(theirs, tmp_path / "ours", progress=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"theirs"}
    # What a killed process leaves is in the way of nobody; what moejax did not leave is replaced by nobody.
    left = tmp_path / ".ours.partial"
    left.mkdir()
    (left / "weights.safetensors").write_text("half")
    with pytest.raises(ValueError, match=r"\.ours\.partial already exists"):
        from_huggingface(theirs, tmp_path / "ours")
    assert (left / "weights.safetensors").read_text() == "half"
    (left / ".lock").touch()
    from_huggingface(theirs, tmp_path / "ours")
    assert {path.name for path in tmp_path.iterdir()} == {"theirs", "ours"}
    with pytest.raises(ValueError, match="already exists"):
        from_huggingface(theirs, tmp_path / "ours")


def test_a_full_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    theirs = write(tmp_path / "theirs", "mixtral")
    monkeypatch.setattr("moejax.huggingface.conversion.shutil.disk_usage", lambda folder: _Usage())
    with pytest.raises(ValueError, match="has 10 bytes free"):
        from_huggingface(theirs, tmp_path / "ours")
    assert {path.name for path in tmp_path.iterdir()} == {"theirs"}


class _Usage:
    free = 10


def test_progress_reaches_its_total(tmp_path):
    theirs = write(tmp_path / "theirs", "gpt_oss")
    seen = []
    done = from_huggingface(theirs, tmp_path / "ours", progress=lambda *said: seen.append(said))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert {total for *_, total in seen} == {done.nbytes}
