"""Hugging Face transformers agree with us: logits, gradients, and every bit of what goes there and back."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers_models
from variants import CASES, VARIANTS

from moejax.huggingface import FAMILIES
from moejax.huggingface.conversion import from_huggingface, to_huggingface
from moejax.huggingface.options import BOOKKEEPING, IGNORED
from moejax.model import transformer
from moejax.model.runtime import Runtime
from moejax.weights.folder import TOKEN_IDS, flat, load_weights, save_weights

TOLERANCE = 1e-4
TOKENS = np.random.default_rng(0).integers(0, 48, (2, 24), np.int32)


@functools.partial(jax.jit, static_argnums=0)
def our_logits(architecture, params, expert_bias, tokens):
    return transformer.forward(architecture, Runtime(), params, tokens, expert_bias=expert_bias)


@functools.partial(jax.jit, static_argnums=0)
def our_loss_and_gradient(architecture, params, expert_bias, tokens):
    """Mean cross-entropy of the next token and logits, and the gradient."""

    def loss(params):
        logits = transformer.forward(architecture, Runtime(), params, tokens, expert_bias=expert_bias)
        log = jax.nn.log_softmax(logits[:, :-1])
        return -jnp.take_along_axis(log, tokens[:, 1:, None], axis=2).mean(), logits

    return jax.value_and_grad(loss, has_aux=True)(params)


def relative_error(ours, theirs):
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_logits_and_gradients_are_the_same(family, variant, tmp_path, record_property):
    model = transformers_models.make(family, VARIANTS[family][variant])
    model.save_pretrained(tmp_path / "theirs")
    from_huggingface(tmp_path / "theirs", tmp_path / "ours")
    (loss, logits), gradient = our_loss_and_gradient(*load_weights(tmp_path / "ours"), TOKENS)

    error = relative_error(np.asarray(logits), transformers_models.logits(model, TOKENS))
    record_property("relative error of logits", float(error))
    assert error < TOLERANCE

    # Their gradient goes the way of their parameters.
    their_loss = transformers_models.become_gradient(model, TOKENS)
    model.save_pretrained(tmp_path / "their gradient")
    from_huggingface(tmp_path / "their gradient", tmp_path / "mapped")
    theirs = dict(flat(load_weights(tmp_path / "mapped").params))
    assert float(loss) == pytest.approx(their_loss, rel=TOLERANCE)
    # Gradients that are 0 but for rounding, as that of a key's bias, are measured against the others.
    least = 1e-2 * max(np.abs(array).max() for array in theirs.values())
    errors = {
        name: float(np.abs(ours - theirs[name]).max() / max(np.abs(theirs[name]).max(), least))
        for name, ours in flat(gradient)
    }
    record_property("relative error of gradients", max(errors.values()))
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_every_bit_comes_back_and_gives_the_same_logits_there(family, variant, tmp_path):
    model = transformers_models.make(family, VARIANTS[family][variant])
    model.save_pretrained(tmp_path / "theirs")
    from_huggingface(tmp_path / "theirs", tmp_path / "ours")
    to_huggingface(tmp_path / "ours", tmp_path / "back", shard_bytes=20_000)
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 1
    assert transformers_models.tensors(tmp_path / "back") == transformers_models.tensors(tmp_path / "theirs")
    again = transformers_models.logits(transformers_models.load(tmp_path / "back"), TOKENS)
    np.testing.assert_array_equal(again, transformers_models.logits(model, TOKENS))


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_bfloat16_and_comes_back_to_the_bit(family, tmp_path):
    import torch

    model = transformers_models.make(family, VARIANTS[family]["plain"]).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "theirs")
    from_huggingface(tmp_path / "theirs", tmp_path / "ours")
    to_huggingface(tmp_path / "ours", tmp_path / "back")
    assert transformers_models.tensors(tmp_path / "back") == transformers_models.tensors(tmp_path / "theirs")
    assert transformers_models.load(tmp_path / "back").dtype == torch.bfloat16
    # The numbers are those of a float32 model of the same, rounded, parameters.
    wide = transformers_models.logits(transformers_models.load(tmp_path / "back").float(), TOKENS)
    assert relative_error(np.asarray(our_logits(*load_weights(tmp_path / "ours"), TOKENS)), wide) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_saved_as_transformers_holds_it_is_the_same_model(family, tmp_path):
    model = transformers_models.make(family, VARIANTS[family]["plain"])
    model.save_pretrained(tmp_path / "theirs")
    model.save_pretrained(tmp_path / "held", save_original_format=False)
    if family != "gpt_oss":
        held, published = (transformers_models.tensors(tmp_path / name).keys() for name in ("held", "theirs"))
        assert held != published
    ours = []
    for name in ("theirs", "held"):
        from_huggingface(tmp_path / name, tmp_path / f"{name} read")
        ours.append(load_weights(tmp_path / f"{name} read").params)
    jax.tree.map(np.testing.assert_array_equal, *ours)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_ours_gives_the_same_logits_there(family, tmp_path):
    from transformers import AutoConfig

    config = AutoConfig.for_model(family, **VARIANTS[family]["plain"]).to_dict()
    architecture = FAMILIES[family].architecture(config)
    params = transformer.init(architecture, jax.random.key(1))
    bias = transformer.init_expert_bias(architecture)
    save_weights(tmp_path / "ours", architecture, params, bias)
    to_huggingface(tmp_path / "ours", tmp_path / "theirs", family=family)
    theirs = transformers_models.logits(transformers_models.load(tmp_path / "theirs"), TOKENS)
    ours = np.asarray(our_logits(architecture, params, bias, TOKENS))
    assert relative_error(ours, theirs) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_ends_at_the_end_of_a_document_and_every_embedding_learns(family, tmp_path):
    import torch
    from transformers import AutoConfig

    config = AutoConfig.for_model(family, **VARIANTS[family]["plain"]).to_dict()
    architecture = FAMILIES[family].architecture(config)
    params, bias = transformer.init(architecture, jax.random.key(1)), transformer.init_expert_bias(architecture)
    save_weights(tmp_path / "ours", architecture, params, bias)
    end = 7
    (tmp_path / "ours" / "generation_config.json").write_text(json.dumps(dict.fromkeys(TOKEN_IDS, end)))
    to_huggingface(tmp_path / "ours", tmp_path / "theirs", family=family)
    model = transformers_models.load(tmp_path / "theirs")
    only_the_end = torch.zeros(architecture.vocab_size)
    only_the_end[end] = 1e4
    model.get_output_embeddings().register_forward_hook(lambda module, given, out: out + only_the_end)
    made = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=6, do_sample=False)
    assert made[0].tolist() == [1, 2, 3, end]
    assert model.get_input_embeddings().padding_idx is None


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_not_in_a_config_is_what_transformers_assumes(family):
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(family).to_dict()
    theirs |= {"rope_theta": theirs["rope_parameters"]["rope_theta"]}
    ours = FAMILIES[family].defaults
    same_if_set = {name: value for name, value in ours.items() if value not in (None, {}) and name in theirs}
    # Of modules of multi-token prediction, their class states one and builds none.
    same_if_set.pop("num_nextn_predict_layers", None)
    told = {name: theirs[name] for name in same_if_set}
    # The window that a switch leaves out is 0 there.
    for name in ("sliding_window",):
        if not theirs.get(name):
            told.pop(name, None), same_if_set.pop(name, None)
    if "rope_parameters" in told:
        told["rope_parameters"] = {k: v for k, v in told["rope_parameters"].items() if k != "rope_theta"}
    assert told == same_if_set


@pytest.mark.parametrize("family", FAMILIES)
def test_every_option_of_their_class_is_taken_refused_or_known_not_to_matter(family):
    from transformers import AutoConfig

    f = FAMILIES[family]
    known = f.fields.keys() | f.defaults.keys() | f.required.keys() | IGNORED | f.ignored | f.aliases.keys()
    known |= {"num_attention_heads", "intermediate_size", "shared_expert_intermediate_size", "is_encoder_decoder"}
    theirs = {name for name in AutoConfig.for_model(family).to_dict() if not name.startswith(BOOKKEEPING)}
    assert theirs <= known


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_passed_over_is_passed_over_there(family, tmp_path):
    model = transformers_models.make(family, VARIANTS[family]["plain"])
    model.save_pretrained(tmp_path)
    f, path = FAMILIES[family], tmp_path / "config.json"
    written = json.loads(path.read_text())
    window = {"sliding_window": 2, "max_window_layers": 1}
    more = {name: value for name, value in window.items() if name in f.switches} | dict(f.always_so)
    more |= {"_attn_implementation_autoset": True, "unsloth_fixed": True, "max_length": 20, "top_k": 50}
    if "layer_types" in f.switches:
        written.pop("layer_types", None)
    path.write_text(json.dumps(written | more))
    assert f.architecture(written | more) == f.architecture(written)
    changed = transformers_models.logits(transformers_models.load(tmp_path), TOKENS)
    np.testing.assert_array_equal(changed, transformers_models.logits(model, TOKENS))
