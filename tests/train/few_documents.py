"""A source of a few documents."""

from dataclasses import dataclass

from moejax.data.source import Document


@dataclass(frozen=True)
class Few:
    """Forty short documents of repetitive text."""

    line: str = "def f{0}(x): return x + {0}\n"
    name = "few"
    size_bytes = 50_000

    def documents(self):
        for number in range(40):
            name = f"file{number}.txt"
            yield Document(name, (self.line.format(number) * 60).encode(), name.encode())
