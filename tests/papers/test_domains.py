"""A law per domain: each has its own exponent, and together they predict the aggregate better than one law does."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.selection.holdout import largest
from moejax.fit.selection.metrics import predict
from moejax.fit.tables.read_runs import read_runs
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.papers.chapter_002.domains import BY_DOMAIN, ONE_LAW, domain_laws, domains_of

BETAS = {"web": 0.2, "math": 0.45}
SHARES = {"web": 0.7, "math": 0.3}


def table():
    """Runs of 9 models by 5 budgets: two domains whose losses differ in their exponent of tokens."""
    active, tokens = (each.ravel() for each in np.meshgrid(np.geomspace(1e7, 1e9, 9), np.geomspace(2e9, 2e11, 5)))
    design, losses = Design(params_active=active, tokens=tokens), {}
    for name, beta in BETAS.items():
        law = dataclasses.replace(HOFFMANN_2022, tokens_exponent=beta, tokens_scale=0.4 * 2e9**beta)
        losses[f"loss_{name}"] = np.asarray(law(design), np.float64)
    whole = sum(SHARES[name] * losses[f"loss_{name}"] for name in BETAS)
    shares = {f"share_{name}": share for name, share in SHARES.items()}
    frame = pd.DataFrame({"params_active": active, "tokens": tokens, **losses, "loss": whole})
    return frame.assign(group=active, **shares)


def test_each_domain_has_its_exponent_and_together_they_predict_what_one_law_misses():
    read = read_runs(table(), Chinchilla)
    found = domain_laws(Chinchilla, read.runs, largest(read.runs, "tokens", share=0.4), domains_of(read.frame))
    for name, beta in BETAS.items():
        assert found.fits[name].law.tokens_exponent == pytest.approx(beta, rel=0.01)
    errors = found.errors()
    assert errors[BY_DOMAIN]["held_out"].mae < 0.1 * errors[ONE_LAW]["held_out"].mae
    assert BETAS["web"] < found.single.law.tokens_exponent < BETAS["math"]
    # Where the domains' laws are right, what one law mispredicts is its own worst error.
    rows = found.table()
    one = rows[(rows["domain"] == ONE_LAW) & (rows["role"] == "held out")]
    worst = max(abs(p - m) for p, m in zip(one["predicted"], one["measured"], strict=True))
    assert found.mispredicted == pytest.approx(worst, rel=0.05)
    # The part of a loss that more tokens take off falls with the domain's own exponent.
    own = rows[(rows["domain"] == "math")].groupby("tokens")["data_term"].first()
    assert np.polyfit(np.log(own.index), np.log(own), 1)[0] == pytest.approx(-BETAS["math"], rel=0.01)


def test_shares_that_are_given_stand_for_those_of_the_table_and_what_is_missing_is_named():
    frame = table()
    given = domains_of(frame, {"math": 3.0, "web": 1.0})
    assert [float(one.share[0]) for one in given.values()] == [0.75, 0.25]
    with pytest.raises(UserError, match="no column loss_code for the domain that --shares names; it has loss"):
        domains_of(frame, {"web": 0.5, "code": 0.5})
    with pytest.raises(
        UserError, match=r"at least two domains, but the table has loss_web, loss_math. Train on a mixture"
    ):
        domains_of(frame.drop(columns=["share_math"]))
    with pytest.raises(UserError, match=r"loss_web must be above 0, but is nan in row 3 .1 row in all.;"):
        domains_of(frame.assign(loss_web=frame["loss_web"].where(frame.index != 2)))
    with pytest.raises(UserError, match=r"name '\.\./web' is invalid: a name may only have letters"):
        domains_of(frame.rename(columns={"loss_web": "loss_../web", "share_web": "share_../web"}))


def test_a_domain_that_is_measured_alone_has_a_law_and_no_share_of_the_aggregate():
    frame = table().assign(share_math=0.0, share_web=0.4)
    frame["loss"] = frame["loss_web"]
    read = read_runs(frame, Chinchilla)
    found = domain_laws(Chinchilla, read.runs, largest(read.runs, "tokens", share=0.4), domains_of(read.frame))
    assert found.notes == ()
    np.testing.assert_allclose(found.aggregated, predict(found.fits["web"].law, read.runs))
    assert found.fits["math"].law.tokens_exponent == pytest.approx(BETAS["math"], rel=0.01)
    with pytest.raises(UserError, match="shares of web and math are all 0 in row 2"):
        domains_of(frame.assign(share_web=frame["share_web"].where(frame.index != 1, 0.0)))
    with pytest.raises(UserError, match=r"share_web must be 0 or more, but is -1 in row 1 .45 rows in all."):
        domains_of(frame.assign(share_web=-1.0))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("loss_web", "the column uses other shares"),
        (9.0, "No shares give the loss of row 1, row 2.*a domain is missing"),
    ],
)
def test_a_loss_that_no_shares_give_is_not_explained_by_other_shares(loss, said):
    frame = table()
    read = read_runs(
        frame.assign(loss=frame[loss] if isinstance(loss, str) else loss + 0.001 * frame["loss"]), Chinchilla
    )
    found = domain_laws(Chinchilla, read.runs, largest(read.runs, "tokens", share=0.4), domains_of(read.frame))
    assert re.search(said, found.notes[0])


@pytest.mark.slow
def test_the_recipe_writes_a_law_per_domain_that_can_be_asked(tmp_path, capsys):
    table().to_csv(tmp_path / "runs.csv", index=False)
    command = ["fit", str(tmp_path / "runs.csv"), "--law", "chinchilla", "--recipe", "domains", "--hold-out", "tokens"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "chapter 002 states 0.02" in capsys.readouterr().out
    assert FitResult.load(tmp_path / "out" / "fits" / "math.json").law.tokens_exponent == pytest.approx(0.45, rel=0.01)
    assert (tmp_path / "out" / "figures" / "chapter-002-domains.png").is_file()
    assert main([*command, "--shares", "web=0.5,math=-1"]) == 2
    assert "--shares gives math a share of -1; it must be above 0" in capsys.readouterr().err
