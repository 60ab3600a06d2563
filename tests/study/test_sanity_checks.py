"""Sanity checks fail when a sweep learnt nothing."""

from moejax.study.analysis import sanity_checks


def rows(*losses):
    return [
        {"model": "m", "tokens": 10 * (i + 1), "loss": loss, "unigram_entropy": 3.0} for i, loss in enumerate(losses)
    ]


def test_falling_losses_below_the_unigram_entropy_hold():
    assert all(check.holds for check in sanity_checks(rows(2.9, 2.5, 2.0)))


def test_a_loss_at_the_unigram_entropy_does_not():
    below, falling = sanity_checks(rows(3.0, 2.5))
    assert not below.holds
    assert falling.holds


def test_losses_that_rise_do_not():
    below, falling = sanity_checks(rows(2.0, 2.5, 2.4))
    assert below.holds
    assert not falling.holds
    assert falling.found == "1 of 2"


def test_a_loss_may_rise_where_text_is_read_again():
    once, again = rows(2.0, 2.5, 2.4), [{**row, "unique_tokens": 15} for row in rows(2.0, 2.5, 2.4)]
    assert sanity_checks(once)[1].holds is False
    assert sanity_checks(again)[1].holds is None


def test_of_models_with_one_budget_none_can_tell_whether_loss_falls():
    assert [check.holds for check in sanity_checks(rows(2.9))] == [True, None]
