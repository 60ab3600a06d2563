"""Adding a law is one file and one line: it is then found by name, asked, fitted, and decides."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import moejax

LAW = '''
"""A law of tokens alone, for a test."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.decision import DecisionRule
from moejax.laws.design import Design
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, law


@law
class TokensAlone:
    """L(D) = E + B/D^beta.

    Smith (2026), Eq. 1. D is ``tokens``, L is in nats per token.
    """

    inputs: ClassVar[tuple[str, ...]] = ("tokens",)
    outputs: ClassVar = LOSS

    irreducible: Any = coefficient("loss that no data remove, nats per token", symbol="E")
    tokens_scale: Any = coefficient("scale of the data term", symbol="B", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Any = coefficient("exponent of tokens", symbol="beta")

    def __call__(self, design: Design) -> Any:
        return self.irreducible + self.tokens_scale * design.tokens**-self.tokens_exponent


def tokens_for_loss(law: TokensAlone, loss: Any) -> dict[str, Any]:
    """Tokens at which the law reaches a loss."""
    return {"optimal_tokens": (law.tokens_scale / (loss - law.irreducible)) ** (1 / law.tokens_exponent)}


ENTRIES = (
    LawEntry(
        name="tokens_alone",
        law=TokensAlone,
        aliases=("smith",),
        published={
            "smith-2026": Published(
                law=TokensAlone(irreducible=1.5, tokens_scale=400.0, tokens_exponent=0.25),
                source="Smith 2026, Table 1",
                provenance="read",
                fitted={"tokens": (1e8, 1e10)},
            )
        },
        decides=(DecisionRule(("loss",), {"optimal_tokens": "D*"}, tokens_for_loss),),
    ),
)
'''

USE = """
import json

import numpy as np
import pandas as pd

from moejax.fit.uncertainty.estimands import decision_estimands
from moejax.fit.uncertainty.estimates import estimate
from moejax.fit.fit import fit
from moejax.fit.fit_result import from_json
from moejax.fit.tables.read_runs import read_runs
from moejax.fit.search.starts import Sobol
from moejax.laws.design import Design
from moejax.laws import law_class
from moejax.laws.predict import predict

law = law_class("smith")
tokens = np.geomspace(1e8, 1e10, 12)
wiggle = 1e-3 * np.cos(np.arange(12))
table = pd.DataFrame({"tokens": tokens, "loss": (1.5 + 400.0 * tokens**-0.25) * (1 + wiggle)})
read = read_runs(table, law)
result = from_json(json.loads(json.dumps(fit(read, "smith", starts=Sobol(count=64)).to_json())))
(decided,) = estimate(result, decision_estimands(law, {"loss": 2.5}))
asked = predict("smith", Design(tokens=1e12))
print(json.dumps({
    "predicted": asked.loss,
    "times": dict(asked.extrapolated),
    "exponent": result.coefficients["tokens_exponent"],
    "decided": decided.value,
    "interval": [decided.interval.low, decided.interval.high],
}))
"""


def test_a_law_is_added_by_one_file_and_one_line(tmp_path):
    package = tmp_path / "moejax"
    shutil.copytree(Path(moejax.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "laws" / "dense" / "tokens_alone.py").write_text(LAW)
    registry = package / "laws" / "__init__.py"
    line = '    "dense.kaplan",\n'
    registry.write_text(registry.read_text().replace(line, line + line.replace("kaplan", "tokens_alone")))
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout.splitlines()[-1])
    assert abs(said["predicted"] - (1.5 + 400.0 * 1e12**-0.25)) < 1e-9
    assert said["times"] == {"tokens": 100.0}
    assert abs(said["exponent"] - 0.25) < 0.02
    assert said["interval"][0] < said["decided"] < said["interval"][1]
    assert abs(said["decided"] / 400.0**4 - 1) < 0.05
