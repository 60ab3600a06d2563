"""Numbers worked out from the printed formulas with nothing but Python's arithmetic."""

from math import log, log2, log10

import pytest

from moejax.laws.design import Design
from moejax.laws.predict import predict

DEEPSEEK = Design(
    params_total=671e9,
    params_active=37e9,
    tokens=14.8e12,
    flops=3.3e24,
    num_experts=256,
    top_k=8,
    num_shared_experts=1,
    model_dim=7168,
    expert_hidden=2048,
)


def test_zhao_equation_11():
    n, na, d, g, s = 671e9, 37e9, 14.8e12, 9, 1 / 9
    structure = 0.1577 * g + 7.2446 / g + 5.1395 * s * s - 3.2363 * s
    coupling = 1 / n**0.2383 + 0.0013 / na**0.2383 + 0.0450 * na / n
    loss = structure * coupling + 38.0510 / n**0.2383 + 27129.0488 / d**0.4694 + 31.0958 / na**0.2383 + 1.8182
    assert predict("zhao", DEEPSEEK).loss == pytest.approx(loss, rel=1e-12)


def test_abnar_equation_6():
    n, d, idle = 671e9, 14.8e12, 248 / 256
    loss = (
        16612.50 / n**0.5962
        + 5455.67 / d**0.3954
        + 0.4598 / (1 - idle) ** -0.1666
        + 17.26 / ((1 - idle) ** 0.1603 * n**0.1595)
        + 0.94
    )
    assert predict("abnar", DEEPSEEK).loss == pytest.approx(loss, rel=1e-12)


def test_tian_equation_4():
    a, g, c = 9 / 257, 7.0, 3.3e24
    start, most = 1.63e-2, 5.28e16
    saturated = 1 / (1 / (a + 1 / (1 / start - 1 / most)) + 1 / most)
    exponent = 1.23 - 7.61e-2 * log10(c) + 1.67e-2 * log2(g) ** 2 - 1.17e-1 * log2(g)
    found = predict("tian", DEEPSEEK).values["efficiency_leverage"]
    assert found == pytest.approx(saturated**exponent, rel=1e-12)


def test_ludziejewski_equation_6():
    n, d, e = 37e9, 14.8e12, 256 / 8
    start, most = 2.0732, 290.4521
    x = 1 / (1 / (e - 1 + 1 / (1 / start - 1 / most)) + 1 / most)
    params = 35.91 * x**-0.2285 * n ** (-0.1889 + 0.0098 * log(x))
    tokens = 35.98 * x**0.5529 * d ** (-0.1775 - 0.0259 * log(x))
    assert predict("ludziejewski", DEEPSEEK).loss == pytest.approx(params + tokens + 1.3637, rel=1e-12)


def test_kaplan_equation_1_5():
    n, d = 37e9, 14.8e12
    loss = ((6.4e13 / n) ** (0.076 / 0.103) + 1.8e13 / d) ** 0.103
    assert predict("kaplan", DEEPSEEK).loss == pytest.approx(loss, rel=1e-12)


def test_clark_equation_1():
    n, e = 37e9, 32
    x = 1 / (1 / (e - 1 + 1 / (1 / 1.847 - 1 / 314.478)) + 1 / 314.478)
    loss = 10 ** (-0.082 * log10(n) - 0.108 * log10(x) + 0.009 * log10(n) * log10(x) + 1.104)
    assert predict("clark", DEEPSEEK).loss == pytest.approx(loss, rel=1e-12)
