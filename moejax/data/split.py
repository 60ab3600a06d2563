"""Which documents are held out: decided by a hash of each, so that neither order nor other documents matter."""

from __future__ import annotations

import hashlib

from moejax.data.document import Document

SIDES = ("train", "validation")


def is_held_out(digest: bytes, share: float) -> bool:
    """Whether a SHA-256 falls into the first ``share`` of all hashes: what is held out stays so as the share grows."""
    return int.from_bytes(digest[:8]) < share * 2**64


def side(document: Document, digest: bytes, share: float) -> str:
    """``train`` or ``validation``, by the document's key, or else by ``digest``, the hash of its content."""
    decides = digest if document.key is None else hashlib.sha256(document.key).digest()
    return SIDES[is_held_out(decides, share)]
