"""List published models as architectures, with the parameter counts that their authors state.

A model is entered from its own configuration file or technical report, and tests compare its computed counts with the
stated ones. ``note`` lists what an Architecture cannot express: multi-token-prediction heads are left out, sliding
windows are counted as full attention, and rotary scaling and score scaling are not entered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moejax.architecture import Architecture, RopeScaling
from moejax.errors import UserError
from moejax.laws.accounting import Params, params
from moejax.ranges import Number
from moejax.wording import did_you_mean


def everything(counts: Params) -> tuple[Number, Number]:
    """Return total and active parameters as counted by ``accounting``."""
    return counts.total, counts.active


def unembedding_active(counts: Params) -> tuple[Number, Number]:
    """Count the unembedding as active, but not the embedding, which is only a look-up."""
    return counts.total, counts.active - counts.embedding


def no_vocabulary(counts: Params) -> tuple[Number, Number]:
    """Count neither embedding nor unembedding."""
    return counts.total - counts.vocabulary, counts.active - counts.vocabulary


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model with the sizes that its authors state."""

    architecture: Architecture
    params_total: float
    """Stated total parameters."""
    params_active: float
    """Stated active parameters."""
    source: str
    counted: Callable[[Params], tuple[Number, Number]] = everything
    """Convention of the authors' counts."""
    note: str = ""
    """Parts that the architecture leaves out, and the reason for stated counts that differ by more than 1 %."""

    def computed(self) -> tuple[Number, Number]:
        """Return total and active parameters of the architecture by the authors' convention."""
        return self.counted(params(self.architecture))


_GPT_OSS = Architecture(
    vocab_size=201_088,
    model_dim=2880,
    num_layers=36,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    num_experts=128,
    top_k=4,
    expert_hidden=2880,
    router="topk_softmax",
    attention_bias=True,
    attention_output_bias=True,
    attention_sinks=True,
    sliding_window=128,
    window_pattern="WF",
    router_bias=True,
    expert_mlp_bias=True,
    activation="clamped_swiglu",
    rope_scaling=RopeScaling(kind="yarn", factor=32.0, original_length=4096, truncate=False),
    tied_embeddings=False,
    rope_theta=150_000.0,
    norm_epsilon=1e-5,
)
_QWEN3 = Architecture(
    vocab_size=151_936,
    model_dim=2048,
    num_layers=48,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    num_experts=128,
    top_k=8,
    expert_hidden=768,
    qk_norm=True,
    tied_embeddings=False,
    rope_theta=1_000_000.0,
)
_GLM_45 = Architecture(
    vocab_size=151_552,
    model_dim=5120,
    num_layers=92,
    num_heads=96,
    num_kv_heads=8,
    head_dim=128,
    dense_hidden=12_288,
    num_dense_layers=3,
    num_experts=160,
    top_k=8,
    expert_hidden=1536,
    num_shared_experts=1,
    router="sigmoid_topk",
    expert_bias=True,
    routed_scaling_factor=2.5,
    rotary_fraction=0.5,
    qk_norm=True,
    attention_bias=True,
    tied_embeddings=False,
    rope_theta=1_000_000.0,
    norm_epsilon=1e-5,
)
_DEEPSEEK_V3 = Architecture(
    vocab_size=129_280,
    model_dim=7168,
    num_layers=61,
    num_heads=128,
    num_kv_heads=128,
    head_dim=128,
    dense_hidden=18_432,
    num_dense_layers=3,
    num_experts=256,
    top_k=8,
    expert_hidden=2048,
    num_shared_experts=1,
    query_latent_dim=1536,
    kv_latent_dim=512,
    rope_head_dim=64,
    value_head_dim=128,
    router="group_limited",
    num_groups=8,
    top_k_groups=4,
    routed_scaling_factor=2.5,
    expert_bias=True,
    tied_embeddings=False,
    rope_scaling=RopeScaling(kind="yarn", factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0),
)
_MIXTRAL = Architecture(
    vocab_size=32_000,
    model_dim=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    num_experts=8,
    top_k=2,
    expert_hidden=14_336,
    tied_embeddings=False,
    rope_theta=1_000_000.0,
    norm_epsilon=1e-5,
)

CATALOGUE: dict[str, PublishedModel] = {
    "gpt-oss-20b": PublishedModel(
        architecture=_GPT_OSS.replace(num_layers=24, num_experts=32),
        params_total=20.91e9,
        params_active=3.61e9,
        counted=unembedding_active,
        source="OpenAI, gpt-oss model card (arXiv:2508.10925), Table 1; gpt_oss/torch/model.py",
    ),
    "gpt-oss-120b": PublishedModel(
        architecture=_GPT_OSS,
        params_total=116.83e9,
        params_active=5.13e9,
        counted=unembedding_active,
        source="OpenAI, gpt-oss model card (arXiv:2508.10925), Table 1; gpt_oss/torch/model.py",
    ),
    "qwen3-30b-a3b": PublishedModel(
        architecture=_QWEN3,
        params_total=30.5e9,
        params_active=3.3e9,
        source="Qwen3-30B-A3B model card and configuration file",
        note="Active: 3.35 billion with the embedding and 3.04 without, stated as 3.3.",
    ),
    "qwen3-235b-a22b": PublishedModel(
        architecture=_QWEN3.replace(model_dim=4096, num_layers=94, num_heads=64, expert_hidden=1536),
        params_total=235e9,
        params_active=22e9,
        source="Qwen3-235B-A22B model card and configuration file",
    ),
    "hunyuan-a13b": PublishedModel(
        architecture=Architecture(
            vocab_size=128_167,
            model_dim=4096,
            num_layers=32,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            num_experts=64,
            top_k=8,
            expert_hidden=3072,
            num_shared_experts=1,
            qk_norm=True,
            norm_epsilon=1e-5,
        ),
        params_total=80e9,
        params_active=13e9,
        source="Tencent, Hunyuan-A13B repository and configuration file",
        note="Active: 12.75 billion, stated in whole billions.",
    ),
    "glm-4.5-air": PublishedModel(
        architecture=_GLM_45.replace(
            model_dim=4096,
            num_layers=46,
            dense_hidden=10_944,
            num_dense_layers=1,
            num_experts=128,
            expert_hidden=1408,
            routed_scaling_factor=1.0,
            qk_norm=False,
        ),
        params_total=106e9,
        params_active=12e9,
        counted=no_vocabulary,
        source="Zhipu AI, GLM-4.5 (arXiv:2508.06471), Table 1; configuration file",
        note="Without its multi-token-prediction layer. Active: 12.18 billion, stated in whole billions.",
    ),
    "glm-4.5": PublishedModel(
        architecture=_GLM_45,
        params_total=355e9,
        params_active=32e9,
        counted=no_vocabulary,
        source="Zhipu AI, GLM-4.5 (arXiv:2508.06471), Table 1; configuration file",
        note="Total: the stated figure includes the multi-token-prediction layer, 4.0 billion; this count does not.",
    ),
    "deepseek-v3.1": PublishedModel(
        architecture=_DEEPSEEK_V3,
        params_total=671e9,
        params_active=36.7e9,
        counted=unembedding_active,
        source="DeepSeek-AI, DeepSeek-V3 repository, README_WEIGHTS.md (the main model; V3.1 has its shapes)",
        note="Stated as 37 billion elsewhere. The 671 billion exclude the multi-token-prediction module, 11.5 billion.",
    ),
    "kimi-k2": PublishedModel(
        architecture=_DEEPSEEK_V3.replace(
            vocab_size=163_840,
            num_heads=64,
            num_kv_heads=64,
            num_dense_layers=1,
            num_experts=384,
            num_groups=1,
            top_k_groups=1,
            routed_scaling_factor=2.827,
            rope_theta=50_000.0,
            rope_scaling=RopeScaling(kind="yarn", factor=32.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0),
        ),
        params_total=1e12,
        params_active=32e9,
        counted=unembedding_active,
        source="Moonshot AI, Kimi-K2 repository, model summary; configuration file",
        note="Total: 1,026 billion, stated as 1T; one more MoE layer gives the 1,043 billion that others state.",
    ),
    "deepseek-moe-16b": PublishedModel(
        architecture=Architecture(
            vocab_size=102_400,
            model_dim=2048,
            num_layers=28,
            num_heads=16,
            num_kv_heads=16,
            head_dim=128,
            dense_hidden=10_944,
            num_dense_layers=1,
            num_experts=64,
            top_k=6,
            expert_hidden=1408,
            num_shared_experts=2,
            norm_topk_prob=False,
            tied_embeddings=False,
        ),
        params_total=16.4e9,
        params_active=2.8e9,
        source="Dai et al., DeepSeekMoE (arXiv:2401.06066); configuration file",
        note="Active: 2.83 billion, stated in two digits.",
    ),
    "mixtral-8x7b": PublishedModel(
        architecture=_MIXTRAL,
        params_total=46.7e9,
        params_active=12.9e9,
        source="Mistral AI, announcement of Mixtral 8x7B (2023) and configuration file",
    ),
    "mixtral-8x22b": PublishedModel(
        architecture=_MIXTRAL.replace(model_dim=6144, num_layers=56, num_heads=48, expert_hidden=16_384),
        params_total=141e9,
        params_active=39e9,
        source="Mistral AI, announcement of Mixtral 8x22B (2024) and configuration file (v0.1)",
    ),
    "olmoe-1b-7b": PublishedModel(
        architecture=Architecture(
            vocab_size=50_304,
            model_dim=2048,
            num_layers=16,
            num_heads=16,
            num_kv_heads=16,
            head_dim=128,
            num_experts=64,
            top_k=8,
            expert_hidden=1024,
            qk_norm=True,
            qk_norm_all_heads=True,
            norm_topk_prob=False,
            tied_embeddings=False,
            norm_epsilon=1e-5,
        ),
        params_total=6.9e9,
        params_active=1.3e9,
        source="Muennighoff et al., OLMoE (arXiv:2409.02060), Table 1; configuration file",
        note="Active: 1.28 billion, stated in two digits.",
    ),
    "moe-mini": PublishedModel(
        architecture=Architecture(
            vocab_size=126_464,
            model_dim=2048,
            num_layers=20,
            num_heads=16,
            num_kv_heads=4,
            head_dim=128,
            dense_hidden=5120,
            num_dense_layers=1,
            num_experts=384,
            top_k=12,
            expert_hidden=384,
            num_shared_experts=1,
            tied_embeddings=False,
        ),
        params_total=17.5e9,
        params_active=0.85e9,
        counted=no_vocabulary,
        source="Tian et al. 2025, Table 1 and App. D; one dense layer follows from the total",
        note="Active: 0.839 billion with the router and 0.824 without; the stated 0.85 does not follow from the shape.",
    ),
    "dense-6.1b": PublishedModel(
        architecture=Architecture(
            vocab_size=126_464,
            model_dim=4096,
            num_layers=28,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            dense_hidden=14_336,
            tied_embeddings=False,
        ),
        params_total=6.11e9,
        params_active=6.11e9,
        counted=no_vocabulary,
        source="Tian et al. 2025, Table 1 and App. D",
    ),
}
"""Published models by name."""


def find(name: str) -> PublishedModel:
    """Return the published model called ``name``, ignoring case.

    Raises:
      UserError: there is no such model; the message suggests similar names.
    """
    model = CATALOGUE.get(name.lower())
    if model is None:
        raise UserError(f"No published model is called {name!r}; {did_you_mean(name.lower(), CATALOGUE)}")
    return model
