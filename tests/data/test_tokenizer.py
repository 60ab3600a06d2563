"""Text to tokens and back; how many bytes each token stands for; whose tokenizer ends documents how."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from written import TEXTS

from moejax.data.tokenizer import open_tokenizer, prompt_tokens
from moejax.data.train_tokenizer import train_tokenizer


@settings(max_examples=50)
@given(text=st.text(alphabet=st.characters(codec="utf-8")))
def test_a_trained_tokenizer_gives_back_every_text_and_counts_its_bytes(bpe, text):
    for tokenizer in (open_tokenizer(str(bpe)), open_tokenizer("bytes")):
        (tokens,) = tokenizer.encode([text.encode()])
        assert tokenizer.decode(tokens) == text
        assert tokenizer.bytes_per_token()[tokens].sum() == len(text.encode())


def test_text_that_looks_like_a_special_token_is_text(bpe):
    tokenizer = open_tokenizer(str(bpe))
    (tokens,) = tokenizer.encode([b"a<|endoftext|>b"])
    assert tokenizer.end_of_document not in tokens
    assert tokenizer.decode(tokens) == "a<|endoftext|>b"


def test_a_tokenizers_own_truncation_and_padding_are_not_obeyed(bpe, tmp_path):
    cutting = Tokenizer.from_file(str(bpe))
    cutting.enable_truncation(4)
    cutting.enable_padding(length=16)
    cutting.save(str(tmp_path / "tokenizer.json"))
    texts = [text.encode() for text in TEXTS]
    for found, expected in zip(
        open_tokenizer(str(tmp_path)).encode(texts), open_tokenizer(str(bpe)).encode(texts), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_what_a_file_wants_before_a_text_is_known_and_not_obeyed(bpe, tmp_path):
    opening = Tokenizer.from_file(str(bpe))
    begin = opening.token_to_id("<|endoftext|>")
    opening.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", begin)]
    )
    opening.save(str(tmp_path / "tokenizer.json"))
    with_template, without = open_tokenizer(str(tmp_path)), open_tokenizer(str(bpe))
    assert (with_template.opening, without.opening) == ((begin,), ())
    np.testing.assert_array_equal(with_template.encode([b"a text"])[0], without.encode([b"a text"])[0])


@pytest.mark.parametrize("end", ["<|endoftext|>", "the end: of $A"])
def test_in_training_a_text_begins_with_the_end_of_another_and_its_own_tokens_stay(bpe, tmp_path, end):
    own = Tokenizer.from_file(str(bpe))
    own.add_special_tokens([end, "<s>"])
    own.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 280)])
    own.save(str(tmp_path / "tokenizer.json"))
    theirs = open_tokenizer(f"{tmp_path}#{end}")
    ours = theirs.as_in_training()
    assert ours.opening == (ours.end_of_document,) == (own.token_to_id(end),) != theirs.opening
    assert ours.as_in_training() is ours
    for text in TEXTS:
        np.testing.assert_array_equal(ours.encode([text.encode()])[0], theirs.encode([text.encode()])[0])
    # Other programs read it from the file.
    (tmp_path / "saved").mkdir()
    assert ours.save(tmp_path / "saved") == f"tokenizer.json#{end}"
    saved = Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    a, b, last = saved.encode("a").ids[1:], saved.encode("b").ids[1:], ours.end_of_document
    assert saved.encode("a").ids == [last, *a]
    assert saved.encode("a", "b").ids == [last, *a, last, *b]


def test_a_prompt_is_a_text_after_the_tokens_that_open_it_and_never_empty(bpe):
    plain = open_tokenizer(str(bpe))
    trained, end = plain.as_in_training(), plain.end_of_document
    text = plain.encode([b"a text"])[0].tolist()
    assert prompt_tokens(plain, b"a text") == text
    assert prompt_tokens(trained, b"a text") == [end, *text]
    assert prompt_tokens(open_tokenizer("bytes"), b"a") == [256, 97]
    assert [prompt_tokens(plain, b""), prompt_tokens(plain, b"", 3), prompt_tokens(trained, b"", 3)] == [
        [end],
        [3],
        [end],
    ]
    assert prompt_tokens(plain, b"\xff") is None


def test_what_is_no_utf8_is_none_and_its_neighbors_are_read(bpe):
    good, bad, empty = open_tokenizer(str(bpe)).encode([b"good", b"\xff\xfe", b""])
    assert bad is None
    assert len(good) > 0 == len(empty)


def sentencepiece_like():
    """Spaces as ▁, unknown characters as their bytes."""
    found = Tokenizer(models.BPE(byte_fallback=True, unk_token=None))
    found.normalizer = normalizers.Replace(" ", "▁")
    found.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["</s>", *names], show_progress=False)
    found.train_from_iterator([text.replace("多", "") for text in TEXTS], trainer)
    described = json.loads(found.to_str())
    # As sentencepiece's own conversions write them: bytes are part of the model, and no added tokens.
    described["added_tokens"] = described["added_tokens"][:1]
    return json.dumps(described), "</s>"


def word_piece():
    """Lower case, words and ##parts: changes the text."""
    found = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    found.normalizer = normalizers.Lowercase()
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.decoder = decoders.WordPiece()
    found.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"]))
    return found.to_str(), "[SEP]"


@pytest.mark.parametrize(("make", "exact"), [(sentencepiece_like, True), (word_piece, False)])
def test_other_peoples_tokenizers_are_read(tmp_path, make, exact):
    text, end = make()
    (tmp_path / "tokenizer.json").write_text(text)
    tokenizer = open_tokenizer(str(tmp_path / "tokenizer.json"))
    assert tokenizer.end_of_document == Tokenizer.from_str(text).token_to_id(end)
    table = tokenizer.bytes_per_token()
    assert table[tokenizer.end_of_document] == 0
    total = sum(table[tokens].sum() for tokens in tokenizer.encode([t.encode() for t in TEXTS]))
    expected = sum(len(t.encode()) for t in TEXTS)
    assert total == expected if exact else 0.5 < total / expected < 1.5


def test_a_tokenizer_whose_end_is_not_known_must_be_told(bpe, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(bpe.read_text().replace("<|endoftext|>", "<|over|>"))
    with pytest.raises(ValueError, match="name the token that ends a document"):
        open_tokenizer(str(path))
    with pytest.raises(ValueError, match="has no token"):
        open_tokenizer(f"{path}#<|end|>")
    told = open_tokenizer(f"{path}#<|over|>")
    assert told.decode(np.array([told.end_of_document])) == ""
    assert told.sha256 != open_tokenizer(str(bpe)).sha256


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere.json", "There is no tokenizer nowhere.json"),
        ("ids:5", "write ids:VOCAB:END"),
        ("ids:5:5", "END must be below VOCAB"),
    ],
)
def test_a_tokenizer_that_is_none_is_refused(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        open_tokenizer(name)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not a readable tokenizer\.json"):
        open_tokenizer(str(tmp_path))


def test_a_tokenizer_learns_the_same_from_the_same_text(text_folder, bpe, tmp_path):
    again = train_tokenizer(str(text_folder), tmp_path / "t.json", vocab_size=300)
    assert again.sha256 == open_tokenizer(str(bpe)).sha256
    assert again.vocab_size == 300
