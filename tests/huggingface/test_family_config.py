"""Options of a config.json become an architecture and come back; what is not computed is refused by name."""

import dataclasses
import runpy
from pathlib import Path

import pytest
from family_architectures import ARCHITECTURES, SMALL
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from moejax.architecture import Architecture, RopeScaling
from moejax.errors import UserError
from moejax.huggingface import FAMILIES
from moejax.huggingface.conversion import check_stock, plan_export
from moejax.huggingface.family import canonical
from moejax.laws.catalogue import CATALOGUE
from moejax.model import transformer
from moejax.weights.folder import EXPERT_BIAS, parameters


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


_CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "kv_latent_dim": st.sampled_from([0, 4]),
        "query_latent_dim": st.sampled_from([0, 4]),
        "rope_head_dim": st.sampled_from([0, 4]),
        "value_head_dim": st.sampled_from([0, 4]),
        "num_shared_experts": st.integers(0, 2),
        "num_experts": st.sampled_from([0, 4]),
        "router": st.sampled_from(["softmax_topk", "sigmoid_topk", "topk_softmax"]),
        "expert_bias": st.booleans(),
        "qk_norm": st.booleans(),
        "attention_bias": st.booleans(),
        "attention_output_bias": st.booleans(),
        "attention_sinks": st.booleans(),
        "router_bias": st.booleans(),
        "expert_mlp_bias": st.booleans(),
        "shared_expert_gate": st.booleans(),
        "num_mtp_layers": st.integers(0, 1),
        "positions": st.sampled_from(["rope", "alibi"]),
        "tied_embeddings": st.booleans(),
    },
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.matrix(2)
def test_what_is_accepted_has_a_place_for_every_parameter_and_the_rest_is_a_sentence(family):
    """The exporter takes what this accepts."""

    @settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
    @given(st.sampled_from(sorted(SMALL)), _CHANGES)
    def check(name, changes):
        architecture = SMALL[name].replace(**changes)
        assume(_can_be_built(architecture))
        try:
            export = plan_export(architecture, family)
        except UserError:
            return
        places = {place for pair in export.pairs for place, _ in pair.ours}
        assert places - {EXPERT_BIAS} == parameters(architecture).keys() - {EXPERT_BIAS}

    check()


def test_deepseeks_attention_has_latents():
    plain = SMALL["deepseek_v3"].replace(
        kv_latent_dim=0, query_latent_dim=0, rope_head_dim=0, value_head_dim=0, head_dim=4, num_mtp_layers=0
    )
    with pytest.raises(UserError, match=r"deepseek_v3 cannot express kv_latent_dim = 0 \(nearest value: 1\)\.$"):
        plan_export(plain, "deepseek_v3")
    with pytest.raises(UserError, match=r"deepseek_v3 cannot express kv_latent_dim = 0 \(nearest value: 1\)\.\n"):
        check_stock(plain)


def test_fields_are_named_as_they_were_written():
    sigmoid = SMALL["qwen3_moe"].replace(router="sigmoid_topk")
    with pytest.raises(
        UserError, match=r"qwen3_moe cannot express router = 'sigmoid_topk' \(nearest value: 'softmax_topk'\)"
    ):
        check_stock(sigmoid)


def test_fields_that_differ_are_named():
    with pytest.raises(ValueError, match=r"mixtral cannot express qk_norm = True \(nearest value: False\)"):
        FAMILIES["mixtral"].config(SMALL["qwen3_moe"].replace(num_dense_layers=0, dense_hidden=0))


REFUSED = {
    "another activation": ("mixtral", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; moejax supports only 'silu'"),
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
        "add layer_types",
    ),
    "a layer of no known type": ("gpt_oss", {"layer_types": ["chunked_attention"] * 3}, "layer_types"),
    "too few layer types": ("gpt_oss", {"layer_types": ["full_attention"]}, "each of the 3 layers"),
    "another slope": ("gpt_oss", {"swiglu_alpha": 1.0}, "swiglu_alpha is 1.0"),
    "rope in halves": ("deepseek_v3", {"rope_interleave": False}, "rope_interleave is False"),
    "another scoring": ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    "another choice": ("deepseek_v3", {"topk_method": "greedy"}, "topk_method is 'greedy'"),
    "norms of latents": ("deepseek_v3", {"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05"),
    "no shared expert": (
        "deepseek_v3",
        {"n_shared_experts": 0},
        "n_shared_experts is 0; deepseek_v3 requires at least 1",
    ),
    "no latents": ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank is 0; deepseek_v3 requires at least 1"),
    "heads that do not split the model": ("olmoe", {"head_dim": 16}, "head_dim is 16"),
    "an option from the future": ("qwen3_moe", {"hyper_connections": 4}, "hyper_connections is 4. moejax does"),
    "a scale in the residual stream": ("mixtral", {"residual_multiplier": 0.2}, "residual_multiplier is 0.2"),
    "text for a number": ("mixtral", {"hidden_size": "8"}, "hidden_size is '8'; it must be a whole number"),
    "a number for a switch": ("olmoe", {"norm_topk_prob": 1}, "norm_topk_prob is 1; it must be true or false"),
    "no heads": ("mixtral", {"num_attention_heads": 0}, "num_attention_heads is 0"),
    "more chosen than there are": ("mixtral", {"num_experts_per_tok": 9}, "config.json: top_k is 9"),
    "several options from the future": (
        "mixtral",
        {"hyper_connections": 4, "_saved_by": 1, "residual_multiplier": 0.2},
        "config.json: hyper_connections is 4, residual_multiplier is 0.2. moejax does not know these",
    ),
    "no norms of queries": ("qwen3_moe", {"use_qk_norm": False}, "use_qk_norm is False; moejax supports only True"),
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


SWITCHES = [(family, option) for family, one in FAMILIES.items() for option in one.switches]


def test_the_windows_of_qwen_have_a_switch():
    assert {family for family, _ in SWITCHES} == {"qwen2_moe", "qwen3_moe"}


GOVERNED = {"sliding_window": 32_768, "max_window_layers": 21, "layer_types": ["sliding_attention"] * 3}
"""An option by its name, as if it were on; of another type too: where the switch is off, nothing reads it."""


@pytest.mark.parametrize(("family", "option"), SWITCHES)
def test_an_option_whose_switch_is_off_is_passed_over(family, option):
    config = FAMILIES[family].config(SMALL[family])
    switch = FAMILIES[family].switches[option]
    for written in (GOVERNED[option], "a mistake"):
        off = config | {switch: False, option: written}
        assert FAMILIES[family].architecture(off) == SMALL[family]
        # A switch that is not in the file is off too.
        del off[switch]
        assert FAMILIES[family].architecture(off) == SMALL[family]
    if option != "max_window_layers":
        with pytest.raises(ValueError, match=option):
            FAMILIES[family].architecture(config | GOVERNED | {switch: True, option: "a mistake"})


@pytest.mark.parametrize("family", FAMILIES)
def test_every_option_of_the_other_kinds_of_rope_is_passed_over(family):
    every = {
        name: value
        for architecture in SCALINGS.values()
        for name, value in FAMILIES["mixtral"].config(architecture)["rope_scaling"].items()
        if name != "mscale_all_dim"
    }
    for kind, architecture in SCALINGS.items():
        config = FAMILIES[family].config(SMALL[family].replace(rope_scaling=architecture.rope_scaling))
        scaling = config["rope_scaling"]
        read = FAMILIES[family].architecture(config | {"rope_scaling": every | scaling})
        assert read == SMALL[family].replace(rope_scaling=architecture.rope_scaling), kind


SCALINGS = {
    scaling.kind: SMALL["mixtral"].replace(rope_scaling=scaling)
    for scaling in (
        RopeScaling(kind="linear", factor=2.0),
        RopeScaling(kind="llama3", factor=2.0, original_length=16, low_freq_factor=1.5, high_freq_factor=3.5),
        RopeScaling(kind="yarn", factor=2.0, original_length=16, beta_fast=20.0, beta_slow=1.5, mscale=0.7),
    )
}
"""By kind, each with every option of its own."""


@pytest.mark.parametrize("family", FAMILIES)
def test_what_tools_keep_for_themselves_does_not_matter(family):
    """transformers 4.48 to 4.5x, unsloth, and whole configurations of releases before 5."""
    kept = {"_attn_implementation_autoset": True, "unsloth_fixed": True, "unsloth_version": "2025.5", "top_k": 50}
    kept |= {"max_length": 20, "temperature": 1.0, "use_bfloat16": True, "sep_token_id": 3, "_commit_hash": "0a1b"}
    config = FAMILIES[family].config(SMALL[family]) | kept
    assert FAMILIES[family].architecture(config) == SMALL[family]


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
    "qwen3-30b-a3b": (
        "qwen3_moe",
        {
            "max_window_layers": 48,
            "output_router_logits": False,
            # Qwen3-Coder-30B-A3B.
            "use_qk_norm": True,
            "qkv_bias": False,
            "shared_expert_intermediate_size": 0,
        },
    ),
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
