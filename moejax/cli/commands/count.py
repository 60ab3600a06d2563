"""Count parameters, FLOPs and bytes of an architecture."""

from __future__ import annotations

from dataclasses import dataclass

from moejax.cli.options import option
from moejax.cli.shared import SEQUENCE_LENGTH, ArchitectureOptions, Length

EXAMPLE = "  moejax count --arch deepseek-v3.1 --sequence-length 4096"


@dataclass(frozen=True, kw_only=True)
class CountCommand(ArchitectureOptions, name="count"):
    """Count parameters, FLOPs and bytes of an architecture, by part and by each paper's convention."""

    ONE_OF = ("arch", "config")
    sequence_length: Length | None = option(
        None, "sequence length, for the FLOPs of attention scores (default: the config's, or 4096)", metavar="TOKENS"
    )

    def run(self) -> None:
        from moejax.report import render
        from moejax.report.counts import count, summary

        architecture, length = self.architecture_and_length()
        assert architecture is not None, "one is required"
        counts = count(str(self.arch or self.config), architecture, self.sequence_length or length or SEQUENCE_LENGTH)
        render.show(summary(counts), as_json=self.json)
