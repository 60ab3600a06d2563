"""Read and write checkpoints of Hugging Face transformers, tensor by tensor."""

from collections import ChainMap
from collections.abc import Mapping

from moejax.huggingface.deepseek_v3 import DEEPSEEK_V3
from moejax.huggingface.families import GPT_OSS, MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.own_code import OWN_CODE
from moejax.plugins import LazyDict, with_plugins

__all__ = ["FAMILIES", "ModelFamily", "families_and_own_code"]

_OWN = (MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE, DEEPSEEK_V3, GPT_OSS)

FAMILIES: LazyDict[str, ModelFamily] = LazyDict(
    lambda: with_plugins({family.name: family for family in _OWN}, "moejax.huggingface", ModelFamily),
    "moejax.huggingface",
)
"""Model families that transformers implements, keyed by the ``model_type`` of config.json. Other packages add families
through entry points."""


def families_and_own_code() -> Mapping[str, ModelFamily]:
    """Return all formats that ``moejax convert`` reads and writes, keyed by ``model_type``: the families, then moejax's
    own code."""
    # Mappings are listed from the last to the first.
    return ChainMap({OWN_CODE.name: OWN_CODE}, FAMILIES)
