"""Write ``docs/laws/NAME.md``, a page for each law, from its docstring, coefficients and published constants.

The formula comes from the law's docstring. Errata and figures come from pages that two other commands generate. The
example prediction is computed.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.folder import write_text
from moejax.laws import CLAIMS, LAWS, NOT_SEARCHED, PUBLISHED
from moejax.laws.accounting import design_of, flops_per_token
from moejax.laws.catalogue import find
from moejax.laws.design import FIELDS, KINDS, Design
from moejax.laws.formula import Formula, Name, formula, names, parse
from moejax.laws.law import LOSS, PROVENANCE
from moejax.laws.predict import predict as ask_law
from moejax.laws.references import references_of
from moejax.papers import errata
from moejax.papers.plots import ALL
from moejax.quantities import format, short
from moejax.quantities import parse as parse_number
from moejax.reference.settings import docstrings
from moejax.report.mathml import block, inline
from moejax.report.render import markdown_table
from moejax.result import Column, Table
from moejax.say import ProgressCallback
from moejax.wording import listed

FOLDER, INDEX, ERRATA, GALLERY = "laws", "laws.md", "errata.md", "gallery.md"
LIST_BEGINS, LIST_ENDS = "<!-- `make laws` writes this table. -->\n", "<!-- End of the table. -->"
"""Markers around the list of laws in ``INDEX``."""

FOOTER_END = "`; it is not edited by hand.*"
"""Last text of every page."""

ASKED = ("--arch", "olmoe-1b-7b", "--tokens", "100B")
"""Arguments of the example prediction on every page."""
ASKED_INSTEAD = {"error_from_loss": ("--loss", "2.5"), "accuracy_from_loss": ("--loss", ".75")}
"""Arguments of the example prediction for laws that read no design."""
ASKED_BESIDES: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("data_constrained", "sparse_repeats"), ("--unique-tokens", "25B")
)
"""Additional arguments of the example prediction that a law requires."""

DESIGNED = {
    "kaplan": "--flops 1e21",
    "chinchilla": "--flops 1e21",
    "data_constrained": "--flops 1e22 --unique-tokens 25B",
    "sparse_repeats": "--flops 1e20 --unique-tokens 2B --hold expansion=4",
    "over_training": "--flops 1e21",
    "five_factor": "--flops 1e21 --params-total 30B",
    "sparsity": "--flops 1e21 --params-total 30B",
    "granularity": "--flops 1e21 --hold expansion=43 --hold granularity=8",
    "expert_count": "--flops 1e21 --params-total 30B",
    "effective_params": "--flops 1e21 --params-total 30B",
    "leverage": "--flops 1e21 --sweep expert_expansion=2:128 --sweep granularity=1:16",
}
"""Options of the example ``moejax design`` command, by law."""

FITTED_HERE = "fitted-here"
RELATED = {
    **dict.fromkeys(("two_factor", "three_factor", "dense_to_moe"), FITTED_HERE),
    "four_factor": "zhao-3",
    "marginal_active": "zhao-2",
    "marginal_experts": "zhao-3",
    "marginal_shared": "zhao-4",
    "isoflop_surface": "abnar-1",
    "allocation": "tian-9",
    "step_law": "tian-2",
    "sparse_repeats": "data-constrained",
}
"""Related figures, for laws without a figure of their own coefficients."""

FITTED_OTHERWISE = {
    "hyperparameters": "moejax fit runs.csv --recipe tian",
    "allocation": "moejax fit runs.csv --recipe tian",
    "step_law": "moejax fit sweep.csv --form 'learning_rate = k*N^a*D^b' --best-by learning_rate,batch_tokens --smooth",
    "isoflop_surface": "moejax fit runs.csv --recipe abnar",
}
"""Commands for laws that ``moejax fit --law`` does not fit."""


def write_pages(docs: Path, update: ProgressCallback = lambda share, text: None) -> Path:
    """Write every law's page, and return the pages' folder.

    Raises:
      UserError: the errata page or the figure page does not exist in ``docs``.
    """
    for name, command in ((ERRATA, "moejax reproduce --errata"), (GALLERY, "moejax plot --gallery")):
        if not (docs / name).exists():
            raise UserError(
                f"The file {docs / name} does not exist, but the laws' pages need it; write it with `{command}`."
            )
    known, gallery = ((docs / name).read_text(encoding="utf-8") for name in (ERRATA, GALLERY))
    folder = docs / FOLDER
    folder.mkdir(exist_ok=True)
    pages = {}
    for number, name in enumerate(LAWS):
        update(number / len(LAWS), name)
        pages[folder / f"{name}.md"] = page(name, known, gallery)
    # Remove generated pages before writing, so that pages of removed laws disappear.
    for path in folder.glob("*.md"):
        if path.is_file() and path.read_text(encoding="utf-8").rstrip().endswith(FOOTER_END):
            path.unlink()
    for path, text in pages.items():
        write_text(path, text)
    index = docs / INDEX
    if index.exists() and LIST_BEGINS in (text := index.read_text(encoding="utf-8")):
        index.write_text(with_list(text), encoding="utf-8")
    update(1.0, "written")
    return folder


def with_list(index: str) -> str:
    """Return the page on laws with the current list of laws between its markers."""
    before, _, rest = index.partition(LIST_BEGINS)
    columns = [Column(name, words=True) for name in ("law", "about", "reads")]
    rows = [
        [f"[`{name}`]({FOLDER}/{name}.md)", _about(law).rstrip("."), ", ".join(f"`{field}`" for field in law.inputs)]
        for name, law in LAWS.items()
    ]
    table = markdown_table(Table("", columns, rows), str)
    return f"{before}{LIST_BEGINS}{table}\n{LIST_ENDS}{rest.partition(LIST_ENDS)[2]}"


def _about(law: Any) -> str:
    return inspect.cleandoc(sys.modules[law.__module__].__doc__ or "").partition("\n")[0]


def page(name: str, known: str, gallery: str) -> str:
    """Return a law's page in Markdown; ``known`` and ``gallery`` are the texts of the errata and figure pages."""
    law: Any = LAWS[name]
    said = formula(law)
    parts = [
        f"# {name}",
        _about(law),
        block(said.equations),
        f"```text\n{textwrap.fill(said.text, 78, break_long_words=False, break_on_hyphens=False)}\n```",
        *map(_prose, said.prose.split("\n\n")),
        "## Symbols",
        *_symbols(name, law, said),
        "## Constants",
        *_constants(name, law),
        *_optima(law),
        *_figure(name, gallery),
        "## Errata",
        *_errata(name, said, known),
        "## Use",
        *_use(name, law),
        "## Cite",
        "\n".join(f"- {one.where}" for one in references_of(name)),
        "```bibtex\n" + "\n\n".join(one.bibtex() for one in references_of(name)) + "\n```",
        f"*`make laws` writes this page from `{law.__module__.replace('.', '/')}.py{FOOTER_END}",
    ]
    return "\n\n".join(parts) + "\n"


def _prose(paragraph: str) -> str:
    pieces = re.split(r"``(.*?)``", " ".join(paragraph.split()))
    plain = {"*": "\\*", "<": "&lt;"}
    return "".join(
        f"`{piece}`" if i % 2 else re.sub(r"[*<]", lambda sign: plain[sign[0]], piece) for i, piece in enumerate(pieces)
    )


ROLES = {"+": "fitted, > 0", "-": "fitted, < 0", "any": "fitted"}
"""Role of a coefficient by its sign; coefficients without a sign are chosen."""
UNITS = {"params": "parameters", "tokens": "tokens", "flops": "FLOPs", "loss": "nats"}


def _symbols(name: str, law: Any, said: Formula) -> list[str]:
    letters = {meaning: letter for letter, meaning in said.letters.items()}
    rows = [
        [inline(Name(letters.get(output, "L"))), f"`{output}`", output.replace("_", " "), unit, "predicted"]
        for output, unit in law.outputs.items()
    ]
    for meaning, letter in letters.items():
        fields = list(names(parse(f"x = {meaning}")[0].right))
        if not set(fields) & set(law.outputs):
            words = "; ".join(_meaning(field) for field in fields)
            unit = next((UNITS[kind] for kind in KINDS if fields[0].startswith(kind)), "")
            rows.append([inline(Name(letter)), f"`{meaning}`", words, unit, "read"])
    for f in _lettered(law):
        role = ROLES.get(f.metadata.get("sign", ""), "chosen") if _fit(name, law) else "given"
        rows.append([_letter(f), f"`{f.name}`", f.metadata["meaning"], _dimension(law, f), role])
    heads = ("symbol", "name", "description", "unit", "role")
    read = listed([f"`{name}`" for name in law.inputs])
    return [
        markdown_table(Table("", [Column(head, words=True) for head in heads], rows), str),
        f"Inputs: {read}. The unit of a coefficient is relative to the unit of the prediction.",
    ]


def _lettered(law: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(law) if f.metadata["symbol"]]


def _letter(f: dataclasses.Field[Any]) -> str:
    return inline(Name(f.metadata["symbol"]))


def _meaning(field: str) -> str:
    said = docstrings(Design)[field] if field in FIELDS else inspect.cleandoc(getattr(Design, field).__doc__ or "")
    words = re.sub(r" \(.*?\)|[.;:].*", "", _prose(said))
    return words[:1].lower() + words[1:]


def _dimension(law: Any, f: dataclasses.Field[Any]) -> str:
    """Return a coefficient's dimension as powers of units."""
    symbols = {g.name: g.metadata["symbol"] for g in dataclasses.fields(law)}

    def power(kind: str, text: str) -> str:
        name = text.removeprefix("-")
        exponent = text.replace(name, symbols.get(name, name))
        return UNITS[kind] if exponent == "1" else f"{UNITS[kind]}^{exponent}"

    powers = [
        power(kind, text)
        for kind, texts in f.metadata["dimension"].items()
        for text in ((texts,) if isinstance(texts, str) else texts)
    ]
    return inline(parse(f"x = {'·'.join(powers)}")[0].right) if powers else ""


def _constants(name: str, law: Any) -> list[str]:
    sets = PUBLISHED[name]
    if not sets:
        return ["No constants are published; fit the law to your runs."]
    columns = [Column("symbol"), Column("name", words=True), *(Column(f"`{key}`", ".9g") for key in sets)]
    values = [[_letter(f), f"`{f.name}`", *(getattr(s.law, f.name) for s in sets.values())] for f in _lettered(law)]
    about = [
        f"- **`{key}`** ({s.provenance}): {_prose(s.source)}."
        + (f" Data: {s.data}." if s.data else "")
        + (" Fitted only to dense models." if s.dense else "")
        + (f" {_prose(s.remark)}" if s.remark else "")
        for key, s in sets.items()
    ]
    known = "; ".join(
        f"*{how}*: {PROVENANCE[how]}" for how in PROVENANCE if any(s.provenance == how for s in sets.values())
    )
    variables = dict.fromkeys(variable for s in sets.values() for variable in s.fitted)
    ranges = [[f"`{variable}`", *(_range(s.fitted.get(variable)) for s in sets.values())] for variable in variables]
    fitted = markdown_table(Table("", [Column("fitted for"), *columns[2:]], ranges), str)
    return [
        markdown_table(Table("", columns, values), str),
        "\n".join(about),
        f"{known}.",
        fitted if ranges else "The source does not state the fitted ranges.",
    ]


def _range(bounds: tuple[Any, Any] | None) -> str:
    return "not stated" if bounds is None else f"{_short(bounds[0])} to {_short(bounds[1])}"


def _short(value: Any) -> str:
    return format(value) if value < 1e15 else short(value, 4)


def _optima(law: Any) -> list[str]:
    module = law.__module__.rpartition(".")[2]
    claims = [make() for key, make in CLAIMS.items() if key.split(".")[0] == module]
    if not claims:
        return []
    said = "\n".join(f"- `{claim.statement}` ({_prose(claim.source)})" for claim in claims)
    return ["## Optima", "[Claims](../laws.md#closed-forms-are-claims), checked by `jax.grad` and by a search:", said]


def _figure(name: str, gallery: str) -> list[str]:
    own = [figure for figure, plot in ALL.items() if plot.law == name and not plot.needs_table]
    if not own and name not in RELATED:
        return []
    shown, others = (own[0], own[1:]) if own else (RELATED[name], [])
    entry = gallery.partition(f"\n### {shown}\n")[2].partition("\n### ")[0].strip()
    if not entry:
        raise UserError(f"{GALLERY} has no figure {shown}; run `moejax plot --gallery` to write the page again.")
    image, caption, *_ = entry.replace("](gallery/", "](../gallery/").split("\n\n")
    by = ALL[shown].law
    parts = ["## Figure", image, caption]
    if shown == FITTED_HERE:
        parts.append(
            "The runs are the quickstart's few small runs: they show the form, but do not determine useful constants."
        )
    if by not in ("", name):
        parts.append(f"The figure shows the law [`{by}`]({by}.md), whose constants are published.")
    if others:
        links = listed([f"[{figure}](../gallery.md#{figure})" for figure in others])
        parts.append(f"Further figures: {links}. To draw your own fit, run `moejax plot {shown} --fit fit.json`.")
    return parts


def _errata(name: str, said: Formula, known: str) -> list[str]:
    begins = " ".join(said.prose.partition("\n\n")[0].split())
    paper = errata.paper_of(begins)
    if paper is None:
        return ["[The errata](../errata.md) cover five other documents, not this law's source."]
    sources = [s.source for s in PUBLISHED[name].values() if errata.paper_of(s.source) in (None, paper)]
    places = errata.places_in("; ".join([begins, *sources]))
    link = f"../errata.md#{errata.anchor(paper)}"
    found = errata.findings(errata.section(known, paper), places)
    if not places:
        return [f"The document does not number its equations; see [its errata]({link})."]
    every = sorted(places, key=lambda place: (place.split()[0], int(place.split()[1])))
    where = listed(every, "or") if len(every) < 5 else f"one of {every[0]} to {every[-1]}"
    if not found:
        return [f"No entry of [the document's errata]({link}) names {where}."]
    return [f"Entries of [the document's errata]({link}) that name {where}:", "\n".join(found)]


def _use(name: str, law: Any) -> list[str]:
    parts = []
    if PUBLISHED[name]:
        command = f"moejax predict --law {name} {' '.join(_asked(name))}"
        parts += [f"```sh\n{command}\n```", f"predicts with `{next(iter(PUBLISHED[name]))}`: {_answer(name)}."]
    design = f"moejax design --law {name} {DESIGNED[name]}" if name in DESIGNED else ""
    commands = [command for command in (_fit(name, law), design, f"moejax laws show {name}") if command]
    return [*parts, "```sh\n" + "\n".join(commands) + "\n```"]


def _fit(name: str, law: Any) -> str:
    """Return the command that fits the law; empty if no command fits it."""
    if name in FITTED_OTHERWISE:
        return FITTED_OTHERWISE[name]
    if law in NOT_SEARCHED or len(law.outputs) > 1:
        return ""
    column = "" if law.outputs == LOSS else f" --loss {next(iter(law.outputs))}"
    return f"moejax fit runs.csv --law {name}{column} --out fit"


def _asked(name: str) -> tuple[str, ...]:
    return ASKED_INSTEAD.get(name, (*ASKED, *ASKED_BESIDES.get(name, ())))


def _answer(name: str) -> str:
    options = dict(zip(_asked(name)[::2], _asked(name)[1::2], strict=True))
    if "--loss" in options:
        design = Design(columns={"loss": parse_number(options["--loss"])})
    else:
        architecture, tokens = find(options["--arch"]).architecture, parse_number(options["--tokens"])
        unique = {"unique_tokens": parse_number(options["--unique-tokens"])} if "--unique-tokens" in options else {}
        flops = float(flops_per_token(architecture, 4096).training * tokens)
        design = dataclasses.replace(design_of(architecture, tokens), flops=flops, **unique)
    said = ask_law(name, design)
    values = [f"`{output}` {format(value)}" for output, value in said.values.items()]
    outside = [
        f"`{variable}` {factor:.2g} times the {'largest' if factor > 1 else 'smallest'} fitted"
        for variable, factor in said.extrapolated.items()
    ]
    return f"{listed(values)}{f' ({listed(outside)})' if outside else ''}"
