"""Hugging Face data sets by name: read with the package, said clearly without it or the network."""

import re
import sys
import types
from pathlib import Path

import pyarrow as pa
import pytest
from written import TEXTS

from moejax.data.source import SourceOptions
from moejax.data.sources import input_shards_of
from moejax.wording import install_command


class Stored:
    """What ``datasets`` returns: columns, and the Arrow files that hold them."""

    def __init__(self, *paths):
        self.column_names = ["text", "url"]
        self.cache_files = [{"filename": str(path)} for path in paths]


def arrow_file(path, texts):
    table = pa.table({"text": texts, "url": ["x"] * len(texts)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return path


@pytest.fixture
def package(monkeypatch):
    """A package ``datasets`` whose ``load_dataset`` a test decides."""
    module = types.ModuleType("datasets")
    module.DatasetDict = type("DatasetDict", (dict,), {})
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def texts(source):
    return [d.content.decode() for shard in input_shards_of(source, SourceOptions()) for d in shard.documents()]


def test_a_data_set_is_read_from_the_files_it_is_kept_in(package, tmp_path):
    asked = []
    files = [arrow_file(tmp_path / "0.arrow", TEXTS[:20]), arrow_file(tmp_path / "1.arrow", TEXTS[20:])]
    package.load_dataset = lambda *words, **options: asked.append((words, options)) or Stored(*files)
    assert texts("hf:someone/web:small") == TEXTS
    assert asked == [(("someone/web", "small"), {"split": "train"})]


def test_without_a_network_it_says_so(package):
    def load_dataset(*words, **options):
        raise ConnectionError("Couldn't reach the Hub\nand much more")

    package.load_dataset = load_dataset
    said = r"hf:web could not be loaded \(datasets reported: ConnectionError: Couldn't reach the Hub\)"
    with pytest.raises(ValueError, match=said):
        texts("hf:web")


def test_without_the_package_it_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=re.escape(install_command("hf"))):
        texts("hf:web")


def test_a_missing_column_is_refused(package, tmp_path):
    package.load_dataset = lambda *words, **options: Stored(arrow_file(tmp_path / "0.arrow", TEXTS))
    with pytest.raises(ValueError, match="has no column 'content', only text, url"):
        input_shards_of("hf:web", SourceOptions(text_field="content"))


def test_what_the_real_package_saved_to_disk_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "saved", num_shards=2)
    assert texts(f"hf:{tmp_path / 'saved'}") == TEXTS
    assert len(list(Path(tmp_path, "saved").glob("*.arrow"))) == 2
