"""Files in the safetensors format are those of its own library, and a damaged one is refused in a sentence."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moejax.weights.safetensors import DTYPES, Kind, TensorFile, TensorFileWriter

_DTYPES = st.sampled_from([np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.int8)])
_SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def _arrays(draw):
    found = {}
    for name in draw(st.lists(st.text("ab.0", min_size=1, max_size=4), unique=True, max_size=4)):
        dtype, shape = draw(_DTYPES), draw(_SHAPES)
        size = int(np.prod(shape)) * dtype.itemsize
        found[name] = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    return found


def _kinds(arrays):
    return {name: Kind(array.dtype, array.shape) for name, array in arrays.items()}


@settings(max_examples=40)
@given(arrays=_arrays(), order=st.randoms(use_true_random=False))
def test_what_is_written_in_any_order_is_read_by_the_safetensors_library_and_by_us(arrays, order, tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "a.safetensors"
    names = list(arrays)
    order.shuffle(names)
    with TensorFileWriter(path, _kinds(arrays), {"format": "pt"}) as file:
        for name in names:
            for index in np.ndindex(arrays[name].shape[:1]):
                file.write(name, index, np.asarray(arrays[name][index]))
    theirs = dict(safetensors.deserialize(path.read_bytes()))
    assert theirs.keys() == arrays.keys()
    with TensorFile(path) as file:
        assert file.metadata == {"format": "pt"}
        for name, array in arrays.items():
            assert bytes(theirs[name]["data"]) == array.tobytes()
            assert DTYPES[theirs[name]["dtype"]] == array.dtype
            assert file.kinds[name] == Kind(array.dtype, array.shape)
            assert file.read(name).tobytes() == array.tobytes()
            for index in np.ndindex(array.shape[:2]):
                assert file.read(name, index).tobytes() == np.asarray(array[index]).tobytes()


@settings(max_examples=40)
@given(array=hnp.arrays(np.int8, hnp.array_shapes(min_dims=0, max_dims=5, max_side=4)), data=st.data())
def test_a_block_of_a_tensor_is_read_alone(array, data, tmp_path_factory):
    ends = [sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in array.shape]
    path, index = tmp_path_factory.mktemp("file") / "a.safetensors", tuple(slice(*pair) for pair in ends)
    with TensorFileWriter(path, _kinds({"a": array})) as file:
        file.write("a", (), array)
    with TensorFile(path) as file:
        np.testing.assert_array_equal(file.read_block("a", index), array[index])
        np.testing.assert_array_equal(file.read_block("a", (slice(None),) * array.ndim), array)


@settings(max_examples=40)
@given(shape=hnp.array_shapes(min_dims=0, max_dims=4, max_side=4), data=st.data())
def test_a_tensor_can_be_written_in_blocks_of_any_shape(shape, data, tmp_path_factory):
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    block = tuple(data.draw(st.integers(1, size)) for size in shape)
    path = tmp_path_factory.mktemp("file") / "a.safetensors"
    with TensorFileWriter(path, {"first": Kind(array.dtype, (3,)), "x": Kind(array.dtype, shape)}) as file:
        file.write("first", (), np.ones(3, np.float32))
        for number in np.ndindex(*(-(-size // part) for size, part in zip(shape, block, strict=True))):
            start = tuple(i * part for i, part in zip(number, block, strict=True))
            file.write_block(
                "x", start, np.asarray(array[tuple(slice(a, a + b) for a, b in zip(start, block, strict=True))])
            )
    with TensorFile(path) as file:
        np.testing.assert_array_equal(file.read("x"), array)
        assert file.read("first").tolist() == [1, 1, 1]


def _file(tmp_path):
    path = tmp_path / "a.safetensors"
    with TensorFileWriter(path, {"x": Kind(np.dtype(np.float32), (8,))}) as file:
        file.write("x", (), np.arange(8, dtype=np.float32))
    return path


def _with_header(tmp_path, header):
    path = tmp_path / "b.safetensors"
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(32))
    return path


@pytest.mark.parametrize("length", [0, 4, 30, -1])
def test_the_beginning_of_a_file_is_refused(tmp_path, length):
    path = _file(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match="fetch it again"):
        TensorFile(path)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"not JSON at all", "it is not JSON"),
        ([1, 2], "must be a group of named items"),
        ({"x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, "x is invalid or has an unknown type .'F99'"),
        ({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}}, "x has 4 bytes in the header, but .* need 12"),
        ({"x": {"dtype": "F32"}}, "x is invalid"),
        ({"x": 7}, "x is invalid"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(tmp_path, header, said):
    with pytest.raises(ValueError, match=said):
        TensorFile(_with_header(tmp_path, header))
