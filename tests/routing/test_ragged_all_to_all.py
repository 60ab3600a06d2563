"""Rows that travel without room between them: as the sizes say, by the documented meaning of JAX's collective."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from moejax.kernels.platform import platform
from moejax.kernels.ragged_all_to_all import ragged_all_to_all, reference

DEVICES, ROOM, WIDTH = 4, 24, 3


def over_devices(function, devices=DEVICES):
    mesh = jax.make_mesh((devices,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), check_vma=False))


@pytest.fixture(scope="module", params=["random", "all to one", "nothing"])
def sizes(request):
    """``sizes[i, j]``: rows from device i to device j."""
    if request.param == "nothing":
        return np.zeros((DEVICES, DEVICES), np.int32)
    if request.param == "all to one":
        return np.eye(DEVICES, dtype=np.int32)[[2] * DEVICES] * 6
    return np.random.default_rng(0).integers(0, 4, (DEVICES, DEVICES)).astype(np.int32)


def sent(sizes):
    """Rows of all devices, one after another, each numbered by where it comes from, goes to and its place there."""
    leaving = sizes.sum(axis=1).max() + 1
    rows = np.full((DEVICES, leaving, WIDTH), 99.0, np.float32)
    for i in range(DEVICES):
        to = [(i, j, n) for j in range(DEVICES) for n in range(sizes[i, j])]
        rows[i, : len(to)] = np.reshape(to, (-1, WIDTH))
    return rows


def test_rows_arrive_in_the_order_of_their_senders(sizes):
    exchange = over_devices(lambda rows: ragged_all_to_all(rows, jnp.asarray(sizes), ROOM, "expert"))
    found = exchange(sent(sizes).reshape(-1, WIDTH)).reshape(DEVICES, ROOM, WIDTH)
    for j in range(DEVICES):
        expected = [(i, j, n) for i in range(DEVICES) for n in range(sizes[i, j])]
        np.testing.assert_array_equal(found[j, : len(expected)], np.reshape(expected, (-1, WIDTH)))
        assert not np.any(found[j, len(expected) :])


def test_rows_come_back_to_where_they_were(sizes):
    rows = sent(sizes)

    def there_and_back(rows):
        out = ragged_all_to_all(rows, jnp.asarray(sizes), ROOM, "expert")
        return ragged_all_to_all(out, jnp.asarray(sizes).T, rows.shape[0], "expert")

    found = np.asarray(over_devices(there_and_back)(rows.reshape(-1, WIDTH))).reshape(rows.shape)
    here = np.arange(rows.shape[1]) < sizes.sum(axis=1)[:, None]
    np.testing.assert_array_equal(found, np.where(here[..., None], rows, 0.0))


def test_the_gradient_of_a_journey_is_the_journey_back(sizes):
    rows = sent(sizes)
    weight = np.random.default_rng(1).normal(size=(DEVICES * ROOM, WIDTH)).astype(np.float32)
    exchange = over_devices(lambda rows: ragged_all_to_all(rows, jnp.asarray(sizes), ROOM, "expert"))
    found = jax.grad(lambda rows: (exchange(rows) * weight).sum())(rows.reshape(-1, WIDTH))
    back = over_devices(lambda w: ragged_all_to_all(w, jnp.asarray(sizes).T, rows.shape[1], "expert"))
    np.testing.assert_array_equal(found, back(weight))


def test_the_gather_means_what_jax_documents_for_its_collective():
    """The example of ``jax.lax.ragged_all_to_all``."""
    both = over_devices(lambda *arrays: reference(*arrays, axis_name="expert"), devices=2)
    found = both(
        jnp.array([1.0, 2, 2, 3, 4, 0]),
        jnp.zeros(8),
        *(jnp.array(x) for x in ([0, 1, 0, 1], [1, 2, 1, 1], [0, 0, 1, 2], [1, 1, 2, 1])),
    )
    np.testing.assert_array_equal(found, [1, 3, 0, 0, 2, 2, 4, 0])


@pytest.mark.parametrize(
    ("target", "collective"), [("tpu", "ragged_all_to_all"), ("cpu", "all_gather"), ("gpu", "all_gather")]
)
def test_each_platform_gets_the_collective_that_it_has(target, collective):
    sizes = jnp.full((DEVICES, DEVICES), 2, jnp.int32)
    device = AbstractDevice(device_kind=target, num_cores=1, platform=target)
    mesh = AbstractMesh((DEVICES,), ("expert",), axis_types=(AxisType.Auto,), abstract_device=device)

    def travelled(rows):
        assert platform() == target
        return ragged_all_to_all(rows, sizes, ROOM, "expert")

    exchange = jax.shard_map(travelled, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"), check_vma=False)
    rows = jax.ShapeDtypeStruct((DEVICES * 8, WIDTH), jnp.bfloat16)
    text = str(jax.make_jaxpr(jax.grad(lambda rows: (exchange(rows) ** 2).sum()))(rows))
    other = {"ragged_all_to_all": "all_gather", "all_gather": "ragged_all_to_all"}[collective]
    assert f" {collective}[" in text
    assert f" {other}[" not in text
