"""YAML as people write it: in the order given, nothing by reference, text of several lines as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(documents: Sequence[Any]) -> str:
    """One file of several documents."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)
