"""Read and write checkpoints of Hugging Face transformers, tensor by tensor."""

from moejax.huggingface.deepseek_v3 import DEEPSEEK_V3
from moejax.huggingface.families import GPT_OSS, MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from moejax.huggingface.family import ModelFamily
from moejax.plugins import LazyDict, with_plugins

__all__ = ["FAMILIES", "ModelFamily"]

_OWN = (MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE, DEEPSEEK_V3, GPT_OSS)

FAMILIES: LazyDict[str, ModelFamily] = LazyDict(
    lambda: with_plugins({family.name: family for family in _OWN}, "moejax.huggingface", ModelFamily)
)
"""Model families by the ``model_type`` of their config.json; other packages add theirs by entry points."""
