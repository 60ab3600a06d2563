"""Tests against other people's implementations, which `make parity` installs."""

import importlib.util
import sys
from pathlib import Path

import pytest

# The architectures of tests/model/known_architectures.py.
sys.path.append(str(Path(__file__).parent.parent / "model"))

WITHOUT_PYTORCH = {"test_manifests.py", "test_tokamax.py"}


def pytest_collection_modifyitems(items):
    """Tests of this folder say why they do not run where PyTorch is missing, but for those that do not need it."""
    missing = [
        name for name in ("torch", "transformers", "lm_eval", "accelerate") if importlib.util.find_spec(name) is None
    ]
    for item in items:
        if "tests/parity/" in item.path.as_posix():
            item.add_marker(pytest.mark.parity)
            if missing and item.path.name not in WITHOUT_PYTORCH:
                item.add_marker(pytest.mark.skip(reason=f"{', '.join(missing)} not installed: make parity"))
