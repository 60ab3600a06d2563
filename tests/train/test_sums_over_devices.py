"""In which types devices add up gradients and gather weights.

XLA's CPU adds in float32 whatever it is asked for, so what is read here is a step as it was cut for the devices, before
it is fitted to their kind.
"""

import re

import jax
import pytest
from small_model import SMALL

from moejax.data.config import DataConfig
from moejax.model.runtime import Runtime
from moejax.plan.collectives import _groups
from moejax.train.mesh import MeshShape, make_mesh
from moejax.train.optimizer import OptimizerConfig
from moejax.train.program import make_program
from moejax.train.training import Recipe, Training

VOCAB, EXPERTS, LENGTH = 272, 7, 32
"""Sizes that tables, routers and tokens alone have."""

LATENT = {"num_kv_heads": 2, "query_latent_dim": 12, "kv_latent_dim": 10, "rope_head_dim": 4}


def training(compute, reduce, mesh=None, **changes):
    architecture = SMALL.replace(
        vocab_size=VOCAB,
        num_layers=1,
        num_experts=EXPERTS,
        num_shared_experts=1,
        shared_expert_gate=True,
        tied_embeddings=False,
    )
    return Training(
        name="small",
        architecture=architecture.replace(**changes),
        recipe=Recipe(
            budgets_tokens=(512,),
            batch_tokens=128,
            data=DataConfig(sequence_length=LENGTH),
            optimizer=OptimizerConfig(learning_rate=1e-2),
            runtime=Runtime(compute_dtype=compute, reduce_dtype=reduce),
            mesh=mesh or MeshShape(data=2, fsdp=2),
        ),
    )


_INSTRUCTION = re.compile(r"= (b?f\d+)\[([\d,]*)\]\S* (all-reduce|reduce-scatter|all-gather)\(.*(replica_groups=.*)")


def types(one, folder):
    """Those in which tables, routers, tokens, vectors (or scalars) and matrices are gathered, and added up, over
    devices."""
    mesh = make_mesh(one.recipe.mesh, jax.devices()[:4])
    program = make_program(one, mesh)
    with jax.set_mesh(mesh):
        lowered = program.step.lower(program.abstract, program.batch, program.schedule)
    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    lowered.compile(quick | {"xla_dump_to": str(folder), "xla_dump_hlo_pass_re": "spmd-partitioning"})
    (partitioned,) = folder.glob("*after_spmd-partitioning*.txt")
    found = {}
    for dtype, shape, kind, groups in _INSTRUCTION.findall(partitioned.read_text()):
        # A group of one reaches no other device.
        if max(map(len, _groups(groups, 4))) > 1:
            sizes = [int(size) for size in shape.split(",") if size]
            large = [size for size in sizes if size > 1]
            what = (
                "table"
                if {VOCAB, VOCAB // 2} & set(sizes)
                else "router"
                if len(large) == 2 and EXPERTS in large
                else "matrix"
            )
            what = "tokens" if LENGTH in sizes or 2 * LENGTH in sizes else what if len(sizes) > 1 else "vector"
            found.setdefault(("gathered" if kind == "all-gather" else "added", what), set()).add(dtype)
    return found


@pytest.mark.parametrize(
    ("compute", "reduce", "changes"),
    [
        ("bfloat16", "float32", {}),
        ("bfloat16", "bfloat16", {}),
        pytest.param("float32", "bfloat16", {}, marks=pytest.mark.slow),
        *(pytest.param("bfloat16", reduce, LATENT, marks=pytest.mark.slow) for reduce in ("float32", "bfloat16")),
    ],
)
@pytest.mark.matrix(1)
def test_devices_add_gradients_of_matrices_in_the_type_asked_for_and_gather_in_that_of_activations(
    compute, reduce, changes, tmp_path
):
    short = {"float32": "f32", "bfloat16": "bf16"}
    assert types(training(compute, reduce, **changes), tmp_path) == {
        ("gathered", "matrix"): {short[compute]},
        ("gathered", "table"): {short[compute]},
        # A router decides in float32.
        ("gathered", "router"): {"f32"},
        # What was computed in float32 is not rounded for the way.
        ("added", "matrix"): {short[reduce] if compute == "bfloat16" else "f32"},
        ("added", "table"): {"f32"},
        ("added", "router"): {"f32"},
        ("added", "vector"): {"f32"},
    }


def test_outputs_of_layers_are_added_in_the_type_of_activations_and_what_the_loss_adds_in_float32(tmp_path):
    mesh = MeshShape(data=1, expert=2, tensor=2)
    found = types(training("bfloat16", "float32", mesh, num_experts=6), tmp_path)
    assert found["added", "tokens"] == {"bf16", "f32"}
    assert found["added", "table"] == {"f32"}
