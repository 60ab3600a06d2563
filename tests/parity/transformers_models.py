"""Models of transformers with random parameters, and their numbers as numpy arrays."""

import os
import tempfile
from pathlib import Path

import numpy as np

os.environ["HF_HUB_OFFLINE"] = "1"
_MODULES = tempfile.TemporaryDirectory(prefix="moejax-test-modules-")
# Code of a checkpoint is copied there before it is imported.
os.environ["HF_MODULES_CACHE"] = _MODULES.name


def make(family: str, options: dict, seed: int = 0):
    """A model in float32 whose every parameter matters: none is 0 or 1, and routers are far from ties."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = AutoConfig.for_model(family, **options)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            mean, deviation = (1.0, 0.2) if "norm" in name else (0.0, 0.2)
            parameter.copy_(mean + deviation * noise)
        for name, buffer in model.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
    return model


def load(folder: Path, **options):
    """What ``AutoModelForCausalLM`` makes of a folder; nothing may be missing, unexpected or of another shape.

    Modules of multi-token prediction, which lie behind the last layer, are not built there.
    """
    from transformers import AutoModelForCausalLM

    options = {"attn_implementation": "eager", "dtype": "auto"} | options
    model, said = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    behind = f"model.layers.{model.config.num_hidden_layers}."
    said["unexpected_keys"] = {key for key in said["unexpected_keys"] if not key.startswith(behind)}
    assert not any(said.values()), said
    return model.eval()


def logits(model, tokens: np.ndarray) -> np.ndarray:
    """In float32."""
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(tokens).long()).logits.float().numpy()


def become_gradient(model, tokens: np.ndarray) -> float:
    """Replace every parameter by the gradient of the mean cross-entropy of the next token; returns that."""
    import torch

    batch = torch.from_numpy(tokens).long()
    loss = model(batch, labels=batch).loss
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            gradient = parameter.grad
            parameter.copy_(torch.zeros_like(parameter) if gradient is None else gradient)
    return float(loss.detach())


def tensors(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Type and bytes of every tensor of a checkpoint, read by the safetensors library."""
    from safetensors import deserialize

    found = {}
    for path in folder.glob("*.safetensors"):
        for name, tensor in deserialize(path.read_bytes()):
            found[name] = (tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
    return found
