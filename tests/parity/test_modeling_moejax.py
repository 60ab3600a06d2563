"""The PyTorch code that is exported with a model computes what moejax computes, under transformers."""

import functools

import jax
import numpy as np
import pytest
import transformers_models
from known_architectures import KNOWN, MIXTURE, NOT_CAUSAL, QUICK

from moejax.huggingface.conversion import from_huggingface, to_huggingface
from moejax.huggingface.own_code import CODE, ROUTERS
from moejax.kernels.experts import ACTIVATIONS
from moejax.model import transformer
from moejax.model.positions import POSITIONS, SCALINGS
from moejax.weights.folder import EXPERT_BIAS, load_weights, nested, parameters, save_weights

TOLERANCE = 1e-5
TOKENS = np.random.default_rng(0).integers(0, 64, (2, 17), np.int32)
MORE = {
    "switch": MIXTURE.replace(router="switch", top_k=1),
    "biased_choice": MIXTURE.replace(
        router="topk_softmax", expert_bias=True, router_bias=True, routed_scaling_factor=1.5, num_mtp_layers=2
    ),
    "scaled_scores": MIXTURE.replace(router="sigmoid_topk", routed_scaling_factor=2.5, tied_embeddings=False),
}
CASES = {name: one for name, one in KNOWN.items() if name not in NOT_CAUSAL} | MORE

forward = functools.partial(jax.jit, static_argnums=(0, 1))(transformer.forward)


def test_the_cases_have_every_router_activation_position_and_scaling():
    for name, known in {"router": ROUTERS, "activation": ACTIVATIONS, "positions": POSITIONS}.items():
        assert {getattr(one, name) for one in CASES.values()} == set(known)
    assert {one.rope_scaling.kind for one in CASES.values() if one.rope_scaling} == set(SCALINGS)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A function from a case to the folders of its weights, in which no array is 0 or 1, and of their export."""

    @functools.cache
    def export(name):
        folder, draw = tmp_path_factory.mktemp(name), np.random.default_rng(0)
        arrays = {
            path: ("norm" in path) + np.float32(0.3) * draw.normal(size=parameter.shape).astype(np.float32)
            for path, parameter in parameters(CASES[name]).items()
        }
        bias = arrays.pop(EXPERT_BIAS, None)
        save_weights(folder / "ours", CASES[name], nested(arrays), bias)
        to_huggingface(folder / "ours", folder / "theirs", family="moejax")
        return folder / "ours", folder / "theirs"

    return export


def load(folder, **options):
    return transformers_models.load(folder, trust_remote_code=True, **({"attn_implementation": None} | options))


def our_logits(folder):
    weights = load_weights(folder)
    return np.asarray(forward(weights.architecture, QUICK, weights.params, TOKENS, expert_bias=weights.expert_bias))


def relative_error(ours, theirs):
    return np.abs(ours - theirs).max() / np.abs(ours).max()


@pytest.mark.parametrize("name", CASES)
def test_logits_are_the_same_and_every_bit_comes_back(name, exported, tmp_path, record_property):
    ours, theirs = exported(name)
    error = relative_error(our_logits(ours), transformers_models.logits(load(theirs), TOKENS))
    record_property("relative error of logits", float(error))
    assert error < TOLERANCE
    from_huggingface(theirs, tmp_path / "back")
    again, before = load_weights(tmp_path / "back"), load_weights(ours)
    assert again.architecture == before.architecture
    jax.tree.map(np.testing.assert_array_equal, again[1:], before[1:])


@pytest.mark.parametrize("name", CASES)
def test_generation_with_a_cache_is_that_without_and_padding_changes_nothing(name, exported):
    import torch

    model, prompts = load(exported(name)[1]), torch.from_numpy(TOKENS[:, :7]).long()
    how = {"max_new_tokens": 9, "do_sample": False}
    made = model.generate(prompts, **how)
    assert made.shape == (2, 16)
    assert torch.equal(made[:, 7:], model(made).logits.argmax(dim=-1)[:, 6:-1])
    assert torch.equal(made, model.generate(prompts, attention_mask=torch.ones_like(prompts), **how))
    assert torch.equal(made, model.generate(prompts, use_cache=False, **how))
    padded, mask = torch.cat([prompts[:, :3], prompts], dim=1), torch.ones(2, 10)
    mask[:, :3] = 0
    assert torch.equal(model.generate(padded, attention_mask=mask, **how)[:, 3:], made)


@pytest.mark.parametrize("argument", ["cache", "past_key_values"])
def test_the_cache_has_the_names_of_transformers_before_and_since_5_24(argument, exported):
    import torch

    model, tokens = load(exported("switch")[1]), torch.from_numpy(TOKENS).long()
    start = model(tokens[:, :-1], use_cache=True)
    last = model(tokens[:, -1:], **{argument: start.past_key_values}).logits
    torch.testing.assert_close(last, model(tokens).logits[:, -1:])


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_is_near_float32(name, exported, tmp_path, record_property):
    import torch

    to_huggingface(exported(name)[0], tmp_path / "rounded", family="moejax", dtype="bfloat16")
    model = load(tmp_path / "rounded")
    assert model.dtype == torch.bfloat16
    from_huggingface(tmp_path / "rounded", tmp_path / "back")
    ours, theirs = our_logits(tmp_path / "back"), transformers_models.logits(model, TOKENS)
    # A token whose experts change by rounding changes altogether, so the median counts.
    error = np.median(np.abs(theirs - ours)) / ours.std()
    record_property("relative error of logits", float(error))
    assert error < 0.02


def test_a_model_saved_by_transformers_is_read_by_both(exported, tmp_path):
    ours, theirs = exported("latent")
    model = load(theirs)
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / CODE.name).read_bytes() == CODE.read_bytes()
    again = transformers_models.logits(load(tmp_path / "saved"), TOKENS)
    np.testing.assert_array_equal(again, transformers_models.logits(model, TOKENS))
    from_huggingface(tmp_path / "saved", tmp_path / "back")
    back, before = load_weights(tmp_path / "back"), load_weights(ours)
    # transformers keeps no modules of multi-token prediction.
    assert back.architecture == before.architecture.without_mtp
    before.params.pop("mtp_layers")
    jax.tree.map(np.testing.assert_array_equal, back.params, before.params)


@pytest.mark.parametrize("name", ["latent", "gpt_oss", "qwen2_moe"])
def test_a_model_with_new_parameters_learns_all_of_them(name, exported):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(exported(name)[1], trust_remote_code=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    tokens = torch.from_numpy(TOKENS).long()
    loss = model(tokens, labels=tokens).loss
    assert abs(loss.item() - np.log(64)) < 0.2
    loss.backward()
    left_out = [path for path, parameter in model.named_parameters() if parameter.grad is None]
    assert left_out == []
