"""Read and write checkpoints of Hugging Face transformers, tensor by tensor."""

from moejax.huggingface.deepseek_v3 import DEEPSEEK_V3
from moejax.huggingface.families import GPT_OSS, MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from moejax.huggingface.family import ModelFamily

__all__ = ["FAMILIES", "ModelFamily"]

FAMILIES: dict[str, ModelFamily] = {
    "mixtral": MIXTRAL,
    "olmoe": OLMOE,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3_MOE,
    "deepseek_v3": DEEPSEEK_V3,
    "gpt_oss": GPT_OSS,
}
"""Model families by the ``model_type`` of their config.json."""
