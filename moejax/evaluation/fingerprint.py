"""Identify a model by what it computes, independent of where or how it is stored."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np

from moejax.config import dump
from moejax.huggingface.family import canonical
from moejax.weights.folder import EXPERT_BIAS, Weights, flat


def fingerprint(weights: Weights) -> str:
    """Return a hash of the parameters in float32 and of the function that the architecture computes.

    Architectures that compute the same function, such as routers that differ in training alone, have the same hash,
    because a transformers checkpoint represents each in one way only. An expert bias of zeros counts as none.
    """
    bias = {} if weights.expert_bias is None or not np.any(weights.expert_bias) else {EXPERT_BIAS: weights.expert_bias}
    architecture = canonical(weights.architecture).replace(expert_bias=bool(bias))
    default = {field.name: field.default for field in dataclasses.fields(architecture)}
    changed = {name: value for name, value in dump(architecture).items() if value != default[name]}
    digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode())
    for name, array in sorted((dict(flat(weights.params)) | bias).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(np.asarray(array, np.float32)).data)
    return digest.hexdigest()[:16]
