"""The law of the Gemstones: losses that are released, and what it says of shapes."""

import numpy as np
import pytest

from moejax.__main__ import main
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.laws.dense.width_depth import PUBLISHED, WidthDepth
from moejax.laws.design import Design
from moejax.laws.predict import predict

COOLED = [
    (256, 23, 48_377_600, 109_987_233_792, 3.301279),
    (256, 80, 104_440_064, 109_987_233_792, 3.069509),
    (512, 12, 98_710_016, 109_987_233_792, 3.094635),
    (768, 3, 103_814_400, 109_987_233_792, 3.262094),
    (768, 45, 475_468_032, 109_987_233_792, 2.709009),
    (1280, 15, 497_457_920, 109_987_233_792, 2.725838),
    (1792, 7, 517_499_136, 109_987_233_792, 2.790486),
    (1536, 50, 1_924_161_024, 109_987_233_792, 2.512722),
    (3072, 12, 2_007_837_696, 99_027_517_440, 2.570808),
]
"""Width, depth, parameters, tokens and loss of released models (wandb_df_for_fitting_cool_end.jsonl)."""


@pytest.mark.parametrize("model", COOLED)
def test_the_released_losses_are_predicted_within_two_percent(model):
    width, depth, params, tokens, loss = model
    said = predict("gemstones", Design(model_dim=width, num_layers=depth, params_active=params, tokens=tokens)).loss
    assert said == pytest.approx(loss, rel=0.02)


def test_of_shapes_with_as_many_parameters_the_shallow_one_is_worse_as_it_was_measured():
    shapes = {(w, d): (p, loss) for w, d, p, _, loss in COOLED}
    deep, shallow = shapes[(512, 12)], shapes[(768, 3)]
    assert deep[1] < shallow[1]
    said = [
        predict("gemstones", Design(model_dim=w, num_layers=d, params_active=1e8, tokens=1.1e11)).loss
        for w, d in ((512, 12), (768, 3))
    ]
    assert said[0] < said[1]


def test_a_table_of_shapes_gives_predictions_back():
    truth = PUBLISHED["gemstones-2025-cooled"].law
    chance = np.random.default_rng(0)
    width, depth = 2 ** chance.uniform(8, 12, 150), 2 ** chance.uniform(1.5, 6.5, 150)
    tokens = 10 ** chance.uniform(9, 11.5, 150)
    design = Design(model_dim=width, num_layers=depth, params_active=16 * width**2 * depth, tokens=tokens)
    exact = np.array([
        float(truth(Design(model_dim=w, num_layers=d, params_active=16 * w**2 * d, tokens=t)))
        for w, d, t in zip(width, depth, tokens, strict=True)
    ])  # fmt: skip
    found = fit_law(WidthDepth, runs_from(design, exact * np.exp(chance.normal(0, 0.002, 150))))
    assert found.metrics.rmse_log < 0.004
    assert found.law.depth_exponent == pytest.approx(truth.depth_exponent, rel=0.5)


def test_a_design_without_its_shape_is_answered_in_a_sentence(capsys):
    assert main(["predict", "--law", "gemstones", "--params-active", "1B", "--tokens", "100B"]) == 2
    assert "also give model_dim and num_layers" in capsys.readouterr().err
