"""A name for a model: what it computes, and nothing of where or how it is stored."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np

from moejax.config import dump
from moejax.weights.folder import Weights
from moejax.weights.parameters import EXPERT_BIAS, flat


def fingerprint(weights: Weights) -> str:
    """Hash of the parameters in float32 and of what the architecture says beyond its defaults."""
    default = {field.name: field.default for field in dataclasses.fields(weights.architecture)}
    said = {name: value for name, value in dump(weights.architecture).items() if value != default[name]}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    bias = {} if weights.expert_bias is None else {EXPERT_BIAS: weights.expert_bias}
    for name, array in sorted((dict(flat(weights.params)) | bias).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(np.asarray(array, np.float32)).data)
    return digest.hexdigest()[:16]
