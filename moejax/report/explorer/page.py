"""A view in words and tables, as the parts of a page."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from moejax.fit.prediction import range_in_words
from moejax.laws.predict import AS_DENSE, beyond_in_words, law_name
from moejax.quantities import format
from moejax.report.explorer.available import Available
from moejax.report.explorer.state import KNOBS, ExplorerState
from moejax.report.explorer.vector import legend, svg
from moejax.report.explorer.view import WITHIN, Range, View
from moejax.result import size

IN_ORDER = ("params_active", "compute", "frontier", "sizes", "leverage")
"""Panels of every law; those of its structure follow."""


def whole(controls: str, seen: str) -> str:
    """The page."""
    return f'<div class="explorer"><aside>{controls}</aside><main>{seen}</main></div>'


def controls(
    state: ExplorerState,
    sliders: Mapping[str, Any],
    law: Any,
    model: Any,
    presets: Sequence[Any],
    steps: Sequence[Any],
    make_config: Any,
) -> str:
    """Menus, presets and sliders, each slider under its name and value; the widgets are written as they are."""
    knobs = "".join(
        f'<div class="knob" id="knob-{name}"><label>{knob.words} <small>{knob.letters}</small></label>'
        f"<output>{written(name, getattr(state, name))}</output><div>{sliders[name]}</div></div>"
        for name, knob in KNOBS.items()
    )
    return f"""{_heading("Laws of mixtures", 1)}{law}{model}
{_heading("Chapter 002")}<div class="row" id="presets">{_row(presets)}</div>
{_heading("The design")}{knobs}<div class="row" id="steps">{_row([*steps, make_config])}</div>"""


def _heading(words: str, level: int = 2) -> str:
    """A heading that marimo does not take into an outline of its own."""
    return f'<div class="h{level}" role="heading" aria-level="{level}">{words}</div>'


def _row(widgets: Sequence[Any]) -> str:
    return "".join(f"{one}" for one in widgets)


def seen(view: View, available: Available) -> str:
    """Everything that moves."""
    link = view.state.link(available.start)
    return headline(view) + figures(view) + optimum(view) + every_law(view, available) + footer(view, link)


def alarm(sentence: str) -> str:
    """What is wrong with what was asked."""
    return f'<p class="alarm" role="alert">{html.escape(sentence)}</p>'


def config_file(text: str, download: Any) -> str:
    """A config file, to be read and saved."""
    return (
        f'<div class="explorer file"><section id="config">{download}<pre>{html.escape(text)}</pre>'
        f"<p>Then <code>moejax count --config=config.py</code>, or <code>moejax train --config=config.py "
        f"--config.recipe.data.source=DATA</code>.</p></section></div>"
    )


def law_label(key: str, available: Available) -> str:
    """A law as a list offers it."""
    law, _, constants = key.partition(":")
    return f"your fit: {constants}" if available.laws[key].published is None else f"{law}, {constants}"


def written(name: str, value: float) -> str:
    """A knob's value as people write it."""
    if name == "unique_tokens" and math.isinf(value):
        return "no limit"
    if name in ("params_active", "tokens", "unique_tokens"):
        return size(value, 3)
    return f"{value:.3g}".replace("e+", "e")


def headline(view: View) -> str:
    """The loss, the dense model's beside it, and what else follows from the state."""
    state, loss = view.state, view.prediction.loss
    gain = view.dense - loss
    than = "equal to" if abs(gain) < 5e-7 else f"{abs(gain):.4f} nats {'below' if gain > 0 else 'above'}"
    facts = [
        ("training tokens", size(state.tokens, 4)),
        ("training FLOPs", f"{state.flops:.3e}".replace("e+", "e")),
        ("total parameters", size(view.design.params_total, 4)),
        ("leverage by Tian", f"{view.leverage:.3g}"),
    ]
    if view.effective is not None:
        facts.insert(3, ("counts as dense", size(view.effective, 4)))
    best = next((r for r in view.ranges if r.name == "params_active"), None)
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return f"""
<section class="headline">
  {_big("loss", "loss, nats/token", loss)}
  {_big("dense", "dense, equal active parameters and FLOPs", view.dense)}
  <p id="gain">{than} the dense model; {_best(best, view)}</p>
  {_repeats(view)}
  <dl>{cells}</dl>
  {_beyond(view)}
</section>"""


def _big(name: str, words: str, loss: float) -> str:
    output = f'<output id="{name}" aria-label="{words}" data-value="{loss!r}">{loss:.4f}</output>'
    return f'<div class="number {name}"><span>{words}</span>{output}</div>'


def _best(best: Range | None, view: View) -> str:
    if best is None or best.endless:
        return "the law has no best size at this budget."
    return (
        f"the best size of this structure has {size(best.best, 3)} active parameters, the best dense model "
        f"{size(view.dense_best, 3)}."
    )


def _repeats(view: View) -> str:
    """What repeated tokens cost, where there are some."""
    state = view.state
    if state.epochs <= 1:
        return ""
    seen = f"{state.epochs:.3g} epochs of {size(state.unique_tokens, 3)} unique tokens"
    if not view.prices_repeats:
        return f'<p id="repeats">{seen}; this law takes a repeated token for a new one.</p>'
    return f'<p id="repeats">{seen}; if all were different, the loss would be {view.unrepeated:.4f}.</p>'


def _beyond(view: View) -> str:
    sentences, said = [], [one.replace("_", " ") for one in beyond_in_words(view.prediction.extrapolated)]
    if said:
        sentences.append(f"Beyond the fitted range: {'; '.join(said)}.")
    elif view.prediction.unchecked:
        sentences.append(f"Nobody says for which range of {', '.join(view.prediction.unchecked)} this was fitted.")
    if view.available_law.fit is not None and view.range is not None:
        sentences.insert(0, range_in_words(view.available_law.fit, view.range, beyond=bool(said)))
        sentences += view.available_law.fit.dropped
    sentences += view.available_law.warnings
    if view.prediction.as_dense:
        sentences.append(AS_DENSE)
    if view.available_law.published is not None and view.available_law.published.remark:
        sentences.append(view.available_law.published.remark)
    return "".join(f'<p class="note">{html.escape(sentence)}</p>' for sentence in sentences)


def figures(view: View) -> str:
    """Every panel with its legend."""
    names = [*IN_ORDER, *(name for name in view.panels if name not in IN_ORDER)]
    drawn = "".join(
        f'<figure id="panel-{name}">{svg(view.panels[name])}{legend(view.panels[name])}</figure>' for name in names
    )
    return f'<section class="figures">{drawn}</section>'


def optimum(view: View) -> str:
    """Optimum and practical range of every knob that the law reads."""
    rows = "".join(
        f'<tr id="range-{r.name}"><th scope="row">{KNOBS[r.name].words}</th><td>{written(r.name, r.now)}</td>'
        f"<td>{_at(r)}</td><td>{_between(r)}</td><td>{1e3 * r.gain:.2f}</td></tr>"
        for r in view.ranges
    )
    table = _table(("", "now", "best", f"within {WITHIN:g} nats of it", "gain, millinats"), rows)
    budget = f"{view.state.flops:.3g}".replace("e+", "e")
    return f"""
<section class="optimum">{_heading("Optimum and practical range")}{table}
<p class="note">One at a time at {budget} FLOPs, the others held; tokens spend the budget. What the law does not read is
left out.</p></section>"""


def _table(head: Sequence[str], rows: str) -> str:
    columns = "".join(f'<th scope="col">{words}</th>' for words in head)
    return f'<div class="scroll"><table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table></div>'


def _at(found: Range) -> str:
    if found.endless:
        return "no end: lower is better" if found.best <= found.low * 1.001 else "no end: higher is better"
    return written(found.name, found.best)


def _between(found: Range) -> str:
    if found.endless:
        return "–"
    low, high = written(found.name, found.low), written(found.name, found.high)
    return f"{low} – {high}" + (" and on" if found.ends[1] else "")


def every_law(view: View, available: Available) -> str:
    """What all published laws say of the design."""
    rows = []
    for key, values in view.every.items():
        law, _, constants = key.partition(":")
        said = ", ".join(f"{_number(name, value)} {name.replace('_', ' ')}" for name, value in values.items())
        chosen = ' class="chosen"' if key == view.state.law else ""
        rows.append(f'<tr{chosen}><th scope="row">{law_name(law)}</th><td>{constants}</td><td>{said}</td></tr>')
    table = _table(("law", "constants", "says"), "".join(sorted(rows)))
    return f"""
<details class="every"><summary>What every published law says of this design</summary>{table}
<p class="note">Losses of different laws are of different data and tokenisers: compare designs under one law.</p>
</details>"""


def _number(name: str, value: float) -> str:
    return f"{value:.4f}" if name == "loss" else format(value)


def footer(view: View, link: str) -> str:
    """The link of this page, and the command of the same numbers."""
    anchor = f'<a id="permalink" href="{html.escape(link or "?", quote=True)}">Link to this page</a>'
    return f"""
<section class="footer"><p>The same in a terminal: <code id="command">{html.escape(view.command)}</code></p>
<p>{anchor} · {html.escape(view.available_law.source)}</p></section>"""
