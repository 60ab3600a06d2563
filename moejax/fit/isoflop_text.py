"""The page of an IsoFLOP analysis: surfaces, optima with their intervals, and why some are missing."""

from __future__ import annotations

from moejax.fit.isoflop_analysis import PAPER, Isoflops, at_slices, direction
from moejax.fit.isoflop_curves import IsoflopOptimum
from moejax.fit.isoflop_surfaces import FOLDS


def text(isoflops: Isoflops) -> list[str]:
    """Lines."""
    return [*_surfaces(isoflops), *_sizes(isoflops), *_sparsities(isoflops), *_pairs(isoflops), *_trends(isoflops)]


def _surfaces(isoflops: Isoflops) -> list[str]:
    search = isoflops.degrees
    paper = search.errors.get(PAPER)
    beside = "" if search.best == PAPER or paper is None else f"; the paper's {PAPER} {paper:.5f}"
    lines = [
        f"IsoFLOP surfaces over {isoflops.symbol} and S: degrees {search.best} of log {isoflops.symbol}, "
        f"log 1/(1-S) and their product",
        f"  RMSE of {FOLDS}-fold cross-validation {search.error:.5f} nats, the lowest of {len(search.errors)}{beside}",
        f"{'budget':>10}{'runs':>6}{'RMSE':>10}{'held out':>10}   Pearson on held-out runs",
    ]
    for one in isoflops.surfaces:
        ends = one.correlation
        correlation = f"{ends.middle:.4f} [{ends.low:.4f}, {ends.high:.4f}]"
        errors = f"{one.rmse:>10.5f}{one.held_out_rmse.middle:>10.5f}"
        lines.append(f"{one.budget.flops:>10.3g}{len(one.budget.runs):>6}{errors}   {correlation}")
    return lines


def _sizes(isoflops: Isoflops) -> list[str]:
    star = f"{isoflops.symbol}*"
    curves, laws = at_slices(isoflops.curves), at_slices(isoflops.by_law)
    last = "by Eq. 6" if laws else ""
    heads = f"{star + ' by the surface':<34}{'loss':>8}   {'by its own parabola (D.4)':<34}{last}"
    lines = ["", f"{'budget':>10}{'S':>8}   {heads}".rstrip()]
    for key, one in at_slices(isoflops.sizes).items():
        loss = "" if one.loss is None else f"{one.loss:.4f}"
        others = f"{curves.get(key, 'none')!s:<34}{laws.get(key, '')}"
        lines.append(f"{key[0]:>10.3g}{key[1]:>8.4g}   {one!s:<34}{loss:>8}   {others}".rstrip())
    agreeing, both = isoflops.agreeing
    lines.append(f"  surface and parabola are within each other's interval at {agreeing} of {both}")
    if agreeing < both / 2:
        lines.append(
            f"  ! fewer than half: this surface bends otherwise than the runs do; believe the parabolas' {star}"
        )
    for what, name in ((star, "value"), (f"the loss at {star}", "loss")):
        rising, falling, known = direction(isoflops.sizes, "sparsity", name)
        lines.append(f"  {what} rises with S at {rising} and falls at {falling} of {known} budgets")
    every = ((star, isoflops.sizes), (f"{star} (D.4)", isoflops.curves), (f"{star} (Eq. 6)", isoflops.by_law))
    for what, optima in every:
        lines += [f"  no {what} at {_where(one, isoflops.symbol)}: {one.why}" for one in optima if one.why]
    return lines


def _sparsities(isoflops: Isoflops) -> list[str]:
    if not isoflops.sparsities:
        return []
    lines = ["", f"{'budget':>10}{isoflops.symbol:>10}   S* by the surface"]
    lines += [f"{one.flops:>10.3g}{one.held['params_total']:>10.3g}   {_or_why(one)}" for one in isoflops.sparsities]
    rising, falling, known = direction(isoflops.sparsities, "params_total")
    return [*lines, f"  S* rises with {isoflops.symbol} at {rising} and falls at {falling} of {known} budgets"]


def _pairs(isoflops: Isoflops) -> list[str]:
    if not isoflops.pairs:
        return []
    lines = ["", f"{'budget':>10}   {isoflops.symbol}* and S* at once (Eq. 2)"]
    for size, sparsity in isoflops.pairs:
        lines.append(f"{size.flops:>10.3g}   " + (f"none: {size.why}" if size.why else f"{size}, {sparsity}"))
    return lines


def _trends(isoflops: Isoflops) -> list[str]:
    if not isoflops.trends:
        return ["", "Over budgets: no optimum is determined at three of them"]
    lines = ["", "Over budgets"]
    for one in isoflops.trends:
        ((name, value),) = one.held.items()
        at = f"{_letter(name, isoflops.symbol)} = {value:.4g}"
        lines.append(f"  {one.what:<12}{at:<14}{one}")
    return lines


def _or_why(one: IsoflopOptimum) -> str:
    return f"none: {one.why}" if one.why else str(one)


def _where(one: IsoflopOptimum, symbol: str) -> str:
    ((name, value),) = one.held.items()
    return f"{one.flops:.3g} FLOPs and {_letter(name, symbol)} = {value:.4g}"


def _letter(name: str, symbol: str) -> str:
    return {"sparsity": "S", "params_total": symbol}[name]
