"""Leverage by a formula names what its groups must hold."""

import pytest

from moejax.design.leverage import held_by
from moejax.errors import UserError
from moejax.laws.formula_law import formula_law


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss = 1.6 + A*(flops*exp(g*V))^-b", "reads V; give V=VALUE"),
        ("loss = 1.6 + A*(flops*g)^-b", "reads no column except the budget"),
    ],
)
def test_wrong_values_of_a_group_are_an_error(text, message):
    law = formula_law(text, columns=("loss", "flops", "V"), signs={})
    with pytest.raises(UserError, match=message):
        held_by(law, {"width": 1.0}, "A")
