"""Published models: their shapes give the sizes that their authors state."""

import pytest

from moejax.laws.accounting import flops_per_token, mtp_params, params
from moejax.laws.catalogue import CATALOGUE, find


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_published_model_is_a_model_that_can_be_built(name):
    CATALOGUE[name].architecture.check()
    assert CATALOGUE[name].source


@pytest.mark.parametrize("name", CATALOGUE)
def test_computed_sizes_are_within_one_percent_or_the_difference_is_explained(name):
    model = CATALOGUE[name]
    total, active = model.computed()
    stated = {"Total": (total, model.params_total), "Active": (active, model.params_active)}
    for word, (computed, published_size) in stated.items():
        difference = abs(computed / published_size - 1)
        assert (difference >= 0.01) == (f"{word}:" in model.note), f"{word} of {name} differs by {difference:.2%}"
        assert difference < 0.03


def test_gpt_oss_matches_its_model_card_part_by_part():
    # Model card, Table 1, in billions: feed-forward, attention, embedding with unembedding.
    stated = {"gpt-oss-20b": (19.12, 0.64, 1.16), "gpt-oss-120b": (114.71, 0.96, 1.16)}
    for name, (feed_forward, attention, vocabulary) in stated.items():
        counts = params(CATALOGUE[name].architecture)
        assert (counts.routed_experts + counts.router) / 1e9 == pytest.approx(feed_forward, abs=0.005)
        assert (counts.attention + counts.attention_biases) / 1e9 == pytest.approx(attention, abs=0.005)
        assert counts.vocabulary / 1e9 == pytest.approx(vocabulary, abs=0.005)


def test_the_multi_token_prediction_layer_explains_glm_and_kimi():
    glm, kimi = (CATALOGUE[name].architecture for name in ("glm-4.5", "kimi-k2"))

    def one_more(architecture) -> float:
        deeper = architecture.replace(num_layers=architecture.num_layers + 1)
        return params(deeper).total - params(architecture).total

    # GLM's extra layer also joins two streams with a matrix of 2·5120 by 5120.
    joined = params(glm).total - params(glm).vocabulary + one_more(glm) + 2 * 5120**2
    assert joined / 1e9 == pytest.approx(355, abs=0.5)
    assert (params(kimi).total + one_more(kimi)) / 1e9 == pytest.approx(1043, abs=0.5)


def test_deepseeks_own_module_is_beside_the_671_billion():
    # README_WEIGHTS.md: 11.5 billion of its own, and 14 with the embedding and the head that it shares.
    architecture = find("deepseek-v3.1").architecture
    ahead = architecture.replace(num_mtp_layers=1)
    own = mtp_params(ahead)
    assert params(ahead) == params(architecture)
    assert own.total / 1e9 == pytest.approx(11.5, rel=0.01)
    assert (own.total + params(ahead).vocabulary) / 1e9 == pytest.approx(14, abs=0.6)
    # All tensors of the release, scales of its float8 aside.
    assert (params(ahead).total + own.total + params(ahead).vocabulary) / 1e9 == pytest.approx(684.5, abs=0.05)


def test_mixtral_8x7b_counted_by_hand():
    layer = 4096 * (4096 + 1024 + 1024 + 4096) + 8 * 3 * 4096 * 14336 + 4096 * 8 + 2 * 4096
    assert params(CATALOGUE["mixtral-8x7b"].architecture).total == 32 * layer + 2 * 32000 * 4096 + 4096


def test_deepseek_v3_trains_at_about_a_quarter_of_a_teraflop_per_token():
    # 6·36.6 billion outside the scores; at 4096 tokens the scores add a fifth.
    flops = flops_per_token(CATALOGUE["deepseek-v3.1"].architecture, 4096).training
    assert flops == pytest.approx(6 * 36.6e9 + 6 * 61 * 4096 * 128 * 320, rel=0.01)


def test_names_are_found_in_any_case_and_near_misses_are_offered():
    assert find("DeepSeek-V3.1") is CATALOGUE["deepseek-v3.1"]
    with pytest.raises(ValueError, match=r"deepseek-v3\.1"):
        find("deepseek-v3")
    with pytest.raises(ValueError, match="choose from"):
        find("something else")
