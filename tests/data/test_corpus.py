"""What a training sees of its data: the embedded corpus as it ever was, prepared sets, mixtures, bits per byte."""

import dataclasses
import hashlib
import json
import os
import shutil
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from written import TEXTS, json_lines

from moejax.data.config import DataConfig, WeightedSource
from moejax.data.corpus import open_corpus, read_summary, unique_tokens
from moejax.data.prepare import prepare
from moejax.data.rows import PACKINGS, counted
from moejax.errors import UserError

SMALL = {"sequence_length": 32, "validation_share": 0.3, "validation_tokens": 640}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    return open_corpus(DataConfig(sequence_length=128), tmp_path_factory.mktemp("embedded"))


def standard_library():
    """Bytes of the files of each split, each followed by 256, read by other means than the package's."""
    root = Path(sysconfig.get_paths()["stdlib"])
    out = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
    paths = [p for p in root.rglob("*.py") if not out & set(p.relative_to(root).parts[:-1])]
    sides = {"train": [], "validation": []}
    for path in sorted(paths, key=lambda p: p.relative_to(root).as_posix()):
        name = path.relative_to(root).as_posix().encode()
        held_out = int.from_bytes(hashlib.sha256(name).digest()[:8]) < 0.05 * 2**64
        sides["validation" if held_out else "train"] += [*path.read_bytes(), 256]
    return {side: np.array(tokens) for side, tokens in sides.items()}


def test_the_embedded_corpus_is_the_standard_librarys_text_file_by_file(embedded):
    for side, tokens in standard_library().items():
        stream = embedded.sets[0].split(side)
        np.testing.assert_array_equal(stream.read(0, len(stream)), tokens)


def test_validation_rows_are_windows_spread_evenly_and_fixed(embedded):
    found = embedded.validation()
    stream = embedded.sets[0].split("validation")
    tokens = stream.read(0, len(stream))
    numbers = np.linspace(0, (len(tokens) - 1) // 128 - 1, 512).astype(int)
    expected = np.stack([tokens[128 * n : 128 * n + 129] for n in numbers])
    np.testing.assert_array_equal(found.rows["tokens"], expected)
    assert found.targets == 512 * 128
    assert found.bytes == (expected[:, 1:] != 256).sum()


def test_a_prepared_set_is_read_where_it_lies(text_folder, bpe, tmp_path):
    prepare(str(text_folder), tmp_path / "set", tokenizer=str(bpe), validation_share=0.3)
    config = DataConfig(source=str(tmp_path / "set"), **SMALL)
    corpus = open_corpus(config, tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["corpus.json"]
    assert read_summary(tmp_path / "data") == corpus.summary()
    assert corpus.summary().vocab_size == 300
    assert next(corpus.batches(batch=4, seed=0))["tokens"].shape == (4, 33)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_bytes_of_the_validation_targets_are_those_of_their_text(text_folder, bpe, tmp_path, packing, tokenizer):
    name = str(bpe) if tokenizer == "bpe" else tokenizer
    config = DataConfig(source=str(text_folder), tokenizer=name, packing=packing, **SMALL)
    corpus = open_corpus(config, tmp_path)
    found = corpus.validation()
    opened = corpus.sets[0].tokenizer
    counts = counted(found.rows)
    assert found.targets == counts.sum()
    # Token by token: a cut inside a character would otherwise change what is decoded.
    table = {t: len(opened.decode(np.array([t])).encode()) for t in range(opened.vocab_size)}
    tokens = found.rows["tokens"][:, 1:][counts]
    ascii_only = [t for t in tokens.tolist() if "\ufffd" not in opened.decode(np.array([t]))]
    rest = len(tokens) - len(ascii_only)
    assert sum(table[t] for t in ascii_only) + rest <= found.bytes <= sum(table[t] for t in ascii_only) + 3 * rest
    if tokenizer == "bytes":
        assert found.bytes == (tokens != 256).sum()


def test_a_tokenizer_that_changes_the_text_counts_the_texts_bytes_on_average(tmp_path, monkeypatch):
    """Lower-casing a sign of two bytes to one of three: the table speaks of other bytes than were read."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))} | {"</s>": 256}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.normalizer = normalizers.Replace("a", "bbb")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    json_lines(tmp_path, texts=[f"{i}" + "a" * 200 for i in range(100)])
    config = DataConfig(source=str(tmp_path / "web.jsonl"), tokenizer=str(tmp_path), **SMALL)
    found = open_corpus(config, tmp_path / "data").validation()
    assert found.bytes == pytest.approx(found.targets / 3, rel=0.02)


def test_a_mixture_reads_and_measures_each_set_by_its_weight(text_folder, tmp_path):
    json_lines(tmp_path, texts=[text.upper() for text in TEXTS])
    parts = tuple(
        WeightedSource(name=name, source=str(source), weight=weight)
        for name, source, weight in (("lower", text_folder, 3.0), ("upper", tmp_path / "web.jsonl", 1.0))
    )
    corpus = open_corpus(DataConfig(mixture=parts, **SMALL), tmp_path / "data")
    validation = corpus.validation()
    assert np.bincount(validation.source).tolist() == [15, 5]
    upper = [bytes(t for t in row if t < 256).upper() for row in validation.rows["tokens"].tolist()]
    same = [
        u == bytes(t for t in row if t < 256) for u, row in zip(upper, validation.rows["tokens"].tolist(), strict=True)
    ]
    assert not any(same[:15])
    assert all(same[15:])
    summary = corpus.summary()
    assert summary.source == "lower, upper"
    assert summary.train.documents + summary.validation.documents == 2 * len(TEXTS)
    a, b = (prepared.frequencies for prepared in corpus.sets)
    mixed = 0.75 * a + 0.25 * b
    assert summary.unigram_entropy == pytest.approx(-sum(f * np.log(f) for f in mixed if f))
    batch = next(corpus.batches(batch=8, seed=0))["tokens"]
    assert batch.shape == (8, 33)
    other = open_corpus(dataclasses.replace(corpus.config, mixture=parts[:1]), tmp_path / "data")
    assert other.summary().sha256 != summary.sha256


def test_so_many_unique_tokens_are_read_again_and_again_of_each_set_by_its_weight(tmp_path):
    for number, name in enumerate(("lower", "upper")):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(number).integers(0, 500, 20_000))
    weights = {"lower": 3.0, "upper": 1.0}
    parts = (WeightedSource(name=n, source=str(tmp_path / f"{n}.npy"), weight=weight) for n, weight in weights.items())
    config = DataConfig(mixture=tuple(parts), tokenizer="ids:500:7", **SMALL)
    every = open_corpus(config, tmp_path / "data")
    some = open_corpus(dataclasses.replace(config, unique_tokens=8 * 32), tmp_path / "data")
    batches = some.batches(batch=8, seed=0)
    seen = Counter(row.tobytes() for _ in range(4) for row in next(batches)["tokens"])
    # Six rows of one set and two of the other, each read once an epoch, weights met to within a row.
    assert len(seen) == 8
    assert set(seen.values()) <= {3, 4, 5}
    all_batches = every.batches(batch=8, seed=0)
    known = {row.tobytes() for _ in range(200) for row in next(all_batches)["tokens"]}
    assert set(seen) <= known
    np.testing.assert_array_equal(some.validation().rows["tokens"], every.validation().rows["tokens"])
    with pytest.raises(ValueError, match=r"needs 750,000 rows of lower, but its training text has"):
        open_corpus(dataclasses.replace(config, unique_tokens=32 * 10**6), tmp_path / "data").batches(batch=8, seed=0)


def numbers(folder, **tokens):
    """A file of random tokens for each name."""
    for seed, (name, count) in enumerate(tokens.items()):
        np.save(folder / f"{name}.npy", np.random.default_rng(seed).integers(0, 500, count))


def mixed(folder, decay=None, **weights):
    """A mixture of such files."""
    parts = tuple(WeightedSource(name=n, source=str(folder / f"{n}.npy"), weight=w) for n, w in weights.items())
    config = DataConfig(mixture=parts, decay_mixture=decay or {}, tokenizer="ids:500:7", **SMALL)
    return open_corpus(config, folder / "data")


def rows_of(corpus, batches, **asked):
    found = corpus.batches(batch=8, seed=3, **asked)
    return [row.tobytes() for _ in range(batches) for row in next(found)["tokens"]]


@pytest.mark.parametrize("others", [("web",), ("web", "code")])
def test_a_part_of_weight_0_changes_neither_the_order_of_the_others_nor_their_loss(tmp_path, others):
    numbers(tmp_path, web=20_000, code=20_000, fine=9_000)
    plain, more = (
        mixed(tmp_path, **weights)
        for weights in (dict.fromkeys(others, 1.0), {"fine": 0.0, **dict.fromkeys(others, 1.0)})
    )
    assert rows_of(plain, 40) == rows_of(more, 40)
    alone, beside = plain.validation(), more.validation()
    fine, *rest = beside.parts
    assert (alone.targets, alone.tokens, alone.bytes) == (beside.targets, beside.tokens, beside.bytes)
    assert (fine.in_loss, [part.in_loss for part in rest]) == (False, [True] * len(others))
    assert fine.targets == 32 * (20 // (1 + len(others)))
    np.testing.assert_array_equal(alone.rows["tokens"], beside.rows["tokens"][beside.source > 0])


@pytest.mark.parametrize("unique", [0, 32 * 96])
def test_unique_tokens_and_epochs_are_those_of_the_rows_that_trunk_and_decay_draw(tmp_path, unique):
    numbers(tmp_path, web=20_000, code=9_000, fine=2_500)
    corpus = mixed(tmp_path, {"fine": 2.0, "web": 1.0}, web=3.0, code=1.0, fine=0.0)
    corpus = dataclasses.replace(corpus, config=dataclasses.replace(corpus.config, unique_tokens=unique))
    trunk, branch = rows_of(corpus, 20), rows_of(corpus, 15, start=20, decay_from=160)
    seen = Counter([*trunk, *branch])
    read = {part.name: part for part in corpus.read(280, 160)}
    there = {name: len(rows) for name, rows in zip(("web", "code", "fine"), corpus._training_rows, strict=True)}
    assert there == ({"web": 72, "code": 24, "fine": there["fine"]} if unique else there)
    # 160 rows of 3 to 1, and then 120 of which the new part has two thirds.
    for name, rows in {"web": 160, "code": 40, "fine": 80}.items():
        assert read[name].epochs == pytest.approx(rows / there[name], abs=2 / there[name])
    assert read["fine"].epochs > 1
    # A row is 32 targets; the last few tokens of each set are in none.
    assert unique_tokens(list(read.values())) == pytest.approx(32 * len(seen), rel=0.01)
    # No row of the set that both read comes twice before all of them have come.
    web = corpus._training_rows[0]
    known = {web[number]["tokens"].tobytes() for number in range(len(web))}
    of_web = [row for row in [*trunk, *branch] if row in known]
    assert len(set(of_web[: there["web"]])) == min(there["web"], len(of_web))


def test_a_part_that_is_not_read_is_none_of_the_unique_tokens(tmp_path):
    numbers(tmp_path, web=20_000, fine=2_500)
    corpus = mixed(tmp_path, web=1.0, fine=0.0)
    (web,) = corpus.read(40, 20)
    assert (web.name, unique_tokens([web])) == ("web", corpus.sets[0].manifest.train.tokens)


def test_a_named_mixture_has_its_papers_weights_and_names_the_parts_that_are_absent(text_folder, tmp_path):
    sets = tmp_path / "sets"
    shutil.copytree(text_folder, sets / "Code")
    config = DataConfig(source=str(sets), named_mixture="li-2026", **SMALL)
    assert {part.name: part.weight for part in config.parts}["Code"] == 4.62
    with pytest.raises(ValueError, match=r"has 6 parts, and .*sets lacks WebData-en, Wikipedia, Book, arXiv, Stack"):
        open_corpus(config, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    with pytest.raises(ValueError, match="did you mean li-2026"):
        dataclasses.replace(config, named_mixture="li-2025").check()


def test_a_mixture_that_is_prepared_is_read_where_its_texts_are_not(text_folder, tmp_path):
    """As on machines that a study is launched on, which see its folder alone."""
    json_lines(tmp_path)
    shutil.copytree(text_folder, tmp_path / "lower")
    named = {"lower": tmp_path / "lower", "web": tmp_path / "web.jsonl"}
    parts = tuple(WeightedSource(name=name, source=str(path), weight=1.0) for name, path in named.items())
    config = DataConfig(mixture=parts, **SMALL)
    before = open_corpus(config, tmp_path / "data").summary()
    shutil.rmtree(named["lower"])
    named["web"].unlink()
    assert open_corpus(config, tmp_path / "data").summary() == before
    with pytest.raises(ValueError, match=r"data\.mixture: .*lower \(lower\), .*web\.jsonl \(web\) are missing"):
        open_corpus(config, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_part_in_which_nothing_can_be_read_is_named_before_another_is_prepared(text_folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_text("")
    for name, seen in {
        "empty": r"; name another source \(known suffixes are",
        "pictures": r" \(only 1 \.png\)",
    }.items():
        parts = {"text": text_folder, name: tmp_path / name}
        mixture = tuple(WeightedSource(name=part, source=str(path), weight=1.0) for part, path in parts.items())
        with pytest.raises(UserError, match=f"{name} contains no readable file{seen}"):
            open_corpus(DataConfig(mixture=mixture, **SMALL), tmp_path / "data")
        assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["../web", "/web", "..", "", "a/b", "corpus.json"])
def test_a_part_is_kept_in_the_folder_of_the_data_and_nowhere_else(text_folder, name):
    mixture = (WeightedSource(name=name, source=str(text_folder), weight=1.0),)
    with pytest.raises(
        UserError, match=r"data\.mixture.*name.*(it names a folder: use only letters|give the part another name)"
    ):
        DataConfig(mixture=mixture, **SMALL).check()


@pytest.mark.parametrize("in_decay", [False, True])
def test_a_weight_of_less_than_a_row_is_refused_before_anything_is_read(text_folder, in_decay):
    weights = {"large": 1.0, "small": 0.5 if in_decay else 1e-5}
    mixture = tuple(WeightedSource(name=name, source=str(text_folder), weight=w) for name, w in weights.items())
    decay = {"large": 1.0, "small": 1e-5} if in_decay else {}
    with pytest.raises(UserError, match="weight 1e-05 gives less than one row in 10,000"):
        DataConfig(mixture=mixture, decay_mixture=decay, **SMALL).check()


def test_the_order_has_a_seed_of_its_own_if_asked(text_folder, tmp_path):
    def first(seed, order_seed):
        config = DataConfig(source=str(text_folder), order_seed=order_seed, **SMALL)
        return next(open_corpus(config, tmp_path).batches(batch=4, seed=seed))["tokens"]

    np.testing.assert_array_equal(first(0, 7), first(1, 7))
    np.testing.assert_array_equal(first(0, 7), first(7, None))
    assert not np.array_equal(first(0, None), first(1, None))


def test_tokens_whose_text_is_not_known_have_no_bytes(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 500, 20_000)
    np.save(tmp_path / "a.npy", tokens)
    config = DataConfig(source=str(tmp_path / "a.npy"), tokenizer="ids:500:7", **SMALL)
    assert open_corpus(config, tmp_path / "data").validation().bytes is None


def test_another_tokenizer_than_the_sets_is_refused(text_folder, bpe, tmp_path):
    prepare(str(text_folder), tmp_path / "bytes", validation_share=0.3)
    prepare(str(text_folder), tmp_path / "bpe", tokenizer=str(bpe), validation_share=0.3)
    config = DataConfig(source=str(tmp_path / "bytes"), tokenizer=str(bpe), **SMALL)
    with pytest.raises(
        ValueError, match=r"was prepared with the tokenizer bytes \(257 tokens\). Remove data\.tokenizer"
    ):
        open_corpus(config, tmp_path / "data")
    parts = tuple(WeightedSource(name=n, source=str(tmp_path / n), weight=1.0) for n in ("bytes", "bpe"))
    with pytest.raises(ValueError, match="were prepared with different tokenizers"):
        open_corpus(DataConfig(mixture=parts, **SMALL), tmp_path / "data")


def test_text_shorter_than_a_row_is_refused(text_folder, tmp_path):
    config = DataConfig(
        source=str(text_folder), sequence_length=100_000, validation_share=0.3, validation_tokens=100_000
    )
    corpus = open_corpus(config, tmp_path)
    with pytest.raises(ValueError, match="validation text is shorter than one row"):
        corpus.validation()
    with pytest.raises(ValueError, match="has 0 rows of this sequence_length"):
        corpus.batches(batch=1, seed=0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sequence_length": 1}, "give a whole number from 2"),
        ({"validation_share": 1.0}, "above 0 and below 1"),
        ({"corrupt_share": 1.0}, "at least 0 and below 1"),
        ({"validation_tokens": 100}, "less than one sequence"),
        (
            {"mixture": (WeightedSource(name="a", source="x", weight=0.0),)},
            "has only weights of 0",
        ),
        ({"mixture": (WeightedSource(name="a", source="x", weight=-1.0),)}, "weight is -1.0; give"),
        ({"decay_mixture": {"a": 1.0}}, "but data.mixture has no parts; list all parts in data.mixture, with weight 0"),
        (
            {"mixture": (WeightedSource(name="web", source="x", weight=1.0),), "decay_mixture": {"wbe": 1.0}},
            "data.decay_mixture: part 'wbe' is unknown; did you mean web",
        ),
        ({"named_mixture": "tian-2025", "decay_mixture": {"Maths": 1.0}}, "part 'Maths' is unknown; did you mean"),
        (
            {"mixture": (WeightedSource(name="web", source="x", weight=1.0),), "decay_mixture": {"web": 0.0}},
            "decay_mixture.web is 0.0; give a number above 0",
        ),
        ({"mixture": (WeightedSource(name="a", source="x", weight=1.0),) * 2}, "give each part a different name"),
    ],
)
def test_an_impossible_choice_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(DataConfig(), **change).check()


def test_an_unknown_packing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"data\.packing 'window' is unknown; did you mean windows"):
        open_corpus(DataConfig(packing="window"), tmp_path)


def test_the_summary_is_written_once_and_is_json(embedded):
    (folder,) = {prepared.folder for prepared in embedded.sets}
    assert json.loads((folder / "corpus.json").read_text())["source"] == "python_stdlib"
    before = os.stat(folder / "corpus.json").st_mtime_ns
    open_corpus(embedded.config, folder)
    assert os.stat(folder / "corpus.json").st_mtime_ns == before


def test_the_order_of_one_set_is_grains_shuffle_of_its_windows(embedded):
    """The order that trainings had before there were mixtures: it must never change."""
    import grain

    stream = embedded.sets[0].split("train")
    starts = grain.MapDataset.range(0, (len(stream) - 1) // 128 * 128, 128).seed(3).shuffle().repeat()
    batches = embedded.batches(batch=16, seed=3)
    for step in range(5):
        expected = np.stack([stream.read(starts[16 * step + i], starts[16 * step + i] + 129) for i in range(16)])
        np.testing.assert_array_equal(next(batches)["tokens"], expected)
