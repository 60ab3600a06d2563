"""List published models as architectures, with the parameter counts that their authors state.

A model is entered from its own configuration file or technical report, and tests compare its computed counts with the
stated ones. ``note`` lists what an Architecture cannot express: multi-token-prediction heads are left out, sliding
windows are counted as full attention, and rotary scaling and score scaling are not entered.
"""

from moejax.errors import UserError
from moejax.laws.catalogue.deepseek import DEEPSEEK_MOE_16B, DEEPSEEK_V31, KIMI_K2
from moejax.laws.catalogue.glm import GLM_45, GLM_45_AIR
from moejax.laws.catalogue.gpt_oss import GPT_OSS_20B, GPT_OSS_120B
from moejax.laws.catalogue.hunyuan import HUNYUAN_A13B
from moejax.laws.catalogue.mixtral import MIXTRAL_8X7B, MIXTRAL_8X22B
from moejax.laws.catalogue.olmoe import OLMOE_1B_7B
from moejax.laws.catalogue.published_model import PublishedModel
from moejax.laws.catalogue.qwen3 import QWEN3_30B_A3B, QWEN3_235B_A22B
from moejax.laws.catalogue.tian import DENSE_6B, MOE_MINI
from moejax.wording import did_you_mean

__all__ = ["CATALOGUE", "PublishedModel", "find"]

CATALOGUE: dict[str, PublishedModel] = {
    "gpt-oss-20b": GPT_OSS_20B,
    "gpt-oss-120b": GPT_OSS_120B,
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "qwen3-235b-a22b": QWEN3_235B_A22B,
    "hunyuan-a13b": HUNYUAN_A13B,
    "glm-4.5-air": GLM_45_AIR,
    "glm-4.5": GLM_45,
    "deepseek-v3.1": DEEPSEEK_V31,
    "kimi-k2": KIMI_K2,
    "deepseek-moe-16b": DEEPSEEK_MOE_16B,
    "mixtral-8x7b": MIXTRAL_8X7B,
    "mixtral-8x22b": MIXTRAL_8X22B,
    "olmoe-1b-7b": OLMOE_1B_7B,
    "moe-mini": MOE_MINI,
    "dense-6.1b": DENSE_6B,
}
"""Published models by name."""


def find(name: str) -> PublishedModel:
    """Return the published model of that name, in any case.

    Raises:
      UserError: there is no such model; the message suggests similar names.
    """
    found = CATALOGUE.get(name.lower())
    if found is None:
        raise UserError(f"No published model is called {name!r}; {did_you_mean(name.lower(), CATALOGUE)}")
    return found
