"""Options of a config.json become an architecture and come back; what is not computed is refused by name."""

import dataclasses
import runpy
from pathlib import Path

import pytest
from family_architectures import ARCHITECTURES, SMALL
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from moejax.architecture import Architecture, RopeScaling
from moejax.huggingface import FAMILIES
from moejax.huggingface.family import canonical
from moejax.laws.catalogue import CATALOGUE
from moejax.model import transformer


def test_every_family_is_drawn_here_and_has_several_variants_in_the_parity_tests():
    assert ARCHITECTURES.keys() == SMALL.keys() == FAMILIES.keys()
    variants = runpy.run_path(str(Path(__file__).parent.parent / "parity" / "variants.py"))["VARIANTS"]
    assert {family for family, several in variants.items() if len(several) > 3} == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.matrix(3)
def test_what_is_written_is_read_back_as_the_same_function(family):
    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(ARCHITECTURES[family])
    def check(architecture):
        assume(_can_be_built(architecture))
        config = FAMILIES[family].config(architecture)
        assert config["model_type"] == family
        back = FAMILIES[family].architecture(config)
        same = canonical(back).replace(expert_bias=architecture.expert_bias)
        assert same == canonical(architecture)
        # What was read says it in the family's own way already.
        assert FAMILIES[family].architecture(FAMILIES[family].config(back)) == back

    check()


def _can_be_built(architecture):
    try:
        transformer.check(architecture)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=16)
@given(
    change=st.sampled_from(
        [
            {"capacity_factor": 1.25},
            {"positions": "alibi"},
            {"rotary_fraction": 0.5},
            {"router": "top_p", "threshold": 0.7},
            {"router": "noisy_topk"},
            {"num_last_dense_layers": 1, "num_layers": 5, "layer_pattern": "EDE", "dense_hidden": 3},
            {"attention_output_bias": True, "attention_bias": False},
            {"norm_epsilon": 1e-3, "router": "expert_choice"},
        ]
    )
)
def test_what_a_family_cannot_compute_is_named_or_kept(family, change):
    architecture = SMALL[family].replace(**change)
    said = ""
    try:
        config = FAMILIES[family].config(architecture)
    except ValueError as error:
        said = str(error)
    if said:
        assert family in said
        assert any(name in said for name in [*change, "Latent attention"])
    else:
        assert canonical(FAMILIES[family].architecture(config)) == canonical(architecture)


def test_fields_that_differ_are_named():
    with pytest.raises(ValueError, match=r"mixtral cannot express qk_norm = True \(there False\)"):
        FAMILIES["mixtral"].config(SMALL["qwen3_moe"].replace(num_dense_layers=0, dense_hidden=0))


REFUSED = {
    "another activation": ("mixtral", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; moejax computes 'silu' alone"),
    "clipped queries": ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0"),
    "an unknown kind of rope": ("mixtral", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type"),
    "a rope scaling without its factor": ("mixtral", {"rope_scaling": {"rope_type": "linear"}}, "has no factor"),
    "a scale of its own": (
        "mixtral",
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "attention_factor": 1.3}},
        "attention_factor is 1.3",
    ),
    "a part of the head": ("qwen3_moe", {"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    "windows that releases disagree about": (
        "qwen2_moe",
        {"use_sliding_window": True, "layer_types": None},
        "name them in layer_types",
    ),
    "a layer of no known type": ("gpt_oss", {"layer_types": ["chunked_attention"] * 3}, "layer_types"),
    "too few layer types": ("gpt_oss", {"layer_types": ["full_attention"]}, "each of the 3 layers"),
    "another slope": ("gpt_oss", {"swiglu_alpha": 1.0}, "swiglu_alpha is 1.0"),
    "rope in halves": ("deepseek_v3", {"rope_interleave": False}, "rope_interleave is False"),
    "another scoring": ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    "another choice": ("deepseek_v3", {"topk_method": "greedy"}, "topk_method is 'greedy'"),
    "norms of latents": ("deepseek_v3", {"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05"),
    "no shared expert": ("deepseek_v3", {"n_shared_experts": 0}, "n_shared_experts is 0"),
    "heads that do not split the model": ("olmoe", {"head_dim": 16}, "head_dim is 16"),
    "an option from the future": ("qwen3_moe", {"hyper_connections": 4}, "hyper_connections is 4, an option that"),
    "a scale in the residual stream": ("mixtral", {"residual_multiplier": 0.2}, "residual_multiplier is 0.2"),
    "text for a number": ("mixtral", {"hidden_size": "8"}, "hidden_size is '8'; it must be a whole number"),
    "a number for a switch": ("olmoe", {"norm_topk_prob": 1}, "norm_topk_prob is 1; it must be true or false"),
    "no heads": ("mixtral", {"num_attention_heads": 0}, "num_attention_heads is 0"),
    "more chosen than there are": ("mixtral", {"num_experts_per_tok": 9}, "config.json: top_k is 9"),
    "a step of nothing": ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_option_that_changes_the_function_is_refused_by_name(case):
    family, options, said = REFUSED[case]
    config = FAMILIES[family].config(SMALL[family]) | options
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        FAMILIES[family].architecture(config)


def test_a_size_that_is_not_given_is_missed_by_name():
    config = FAMILIES["mixtral"].config(SMALL["mixtral"])
    del config["hidden_size"]
    with pytest.raises(ValueError, match="lacks hidden_size"):
        FAMILIES["mixtral"].architecture(config)


def test_unknown_options_that_are_off_do_not_matter():
    config = FAMILIES["mixtral"].config(SMALL["mixtral"]) | {"new_idea": False, "newer_idea": None}
    assert FAMILIES["mixtral"].architecture(config) == SMALL["mixtral"]


def test_older_and_newer_releases_write_rope_in_different_places():
    config = FAMILIES["mixtral"].config(SMALL["mixtral"])
    del config["rope_theta"], config["rope_scaling"]
    old = config | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = config | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}
    read = [FAMILIES["mixtral"].architecture(each) for each in (old, new)]
    assert read[0] == read[1]
    assert read[0].rope_scaling == RopeScaling(kind="linear", factor=2.0)


def test_yarn_takes_its_factor_from_the_lengths_when_it_has_none():
    scaling = {"type": "yarn", "factor": None, "original_max_position_embeddings": 16}
    config = FAMILIES["mixtral"].config(SMALL["mixtral"]) | {"rope_scaling": scaling, "max_position_embeddings": 64}
    found = FAMILIES["mixtral"].architecture(config).rope_scaling
    assert found == RopeScaling(kind="yarn", factor=4.0, original_length=16)


def test_gpt_oss_has_its_scaling_where_none_is_named():
    config = FAMILIES["gpt_oss"].config(SMALL["gpt_oss"])
    assert FAMILIES["gpt_oss"].architecture(config).rope_scaling is None
    del config["rope_scaling"]
    assert FAMILIES["gpt_oss"].architecture(config).rope_scaling == CATALOGUE["gpt-oss-20b"].architecture.rope_scaling


PUBLISHED = {
    "mixtral-8x7b": ("mixtral", {"max_position_embeddings": 32_768, "router_aux_loss_coef": 0.02}),
    "olmoe-1b-7b": ("olmoe", {}),
    "qwen3-30b-a3b": ("qwen3_moe", {"max_window_layers": 48, "output_router_logits": False}),
    "deepseek-v3.1": ("deepseek_v3", {"ep_size": 1, "aux_loss_alpha": 0.001, "seq_aux": True, "pretraining_tp": 1}),
    "gpt-oss-120b": ("gpt_oss", {"initial_context_length": 4096, "experts_per_token": 4}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_catalogue_is_what_the_published_options_say(name):
    family, ignored = PUBLISHED[name]
    architecture = CATALOGUE[name].architecture
    read = FAMILIES[family].architecture(FAMILIES[family].config(architecture) | ignored)
    differing = [
        f.name
        for f in dataclasses.fields(Architecture)
        if getattr(canonical(read), f.name) != getattr(canonical(architecture), f.name)
    ]
    assert not differing
