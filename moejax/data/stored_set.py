"""Open a prepared set in an object store: small files are copied here, tokens are read from the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from moejax.data.prepared import MANIFEST, SHARDS, Manifest, PreparedSet, StoredTokens
from moejax.data.shard import SPLITS
from moejax.errors import UserError
from moejax.folder import atomic_write
from moejax.storage import open_storage, reaching
from moejax.stored import parse_json

_THREADS = 16


def open_stored_set(url: str, folder: Path) -> PreparedSet:
    """Open the set at ``url``, copying everything but the tokens to ``folder``: manifest, tokenizer, counts and
    document ends. Existing copies of this set are kept.

    Raises:
      UserError: the store cannot be reached, or has no prepared set there.
    """
    storage = open_storage(url)
    with reaching(url):
        try:
            told = storage.cat_file(MANIFEST)
        except FileNotFoundError:
            raise UserError(
                f"{url} holds no prepared set; make one here with moejax data prepare, and copy its folder there."
            ) from None
        manifest: Manifest = parse_json(told, Manifest, f"{url}/{MANIFEST}", remedy="put the prepared set there again")
        is_copied = (folder / MANIFEST).is_file() and (folder / MANIFEST).read_bytes() == told

        def copy(name: str) -> None:
            place = folder / name
            if not (is_copied and place.exists()):
                place.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(place) as partial:
                    storage.get_file(name, str(partial))

        splits = [f"{SHARDS}/{shard.stem}.{split}" for shard in manifest.shards for split in SPLITS]
        files = storage.fs.find(f"{storage.path}/{SHARDS}", detail=True)
        sizes = {Path(path).name: about["size"] for path, about in dict(files).items()}
        with ThreadPoolExecutor(_THREADS) as threads:
            beside = [name for name in ("counts.npy", "tokenizer.json") if storage.exists(name)]
            list(threads.map(copy, [*beside, *(f"{split}.ends" for split in splits)]))
        with atomic_write(folder / MANIFEST) as partial:
            partial.write_bytes(told)
    return PreparedSet(folder, StoredTokens(storage, url, sizes))
