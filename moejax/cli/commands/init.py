"""Implement ``moejax init``: copy moejax's config files to a folder where they can be run and changed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from moejax.cli.config_file import FOLDER, packaged_files, packaged_folder
from moejax.errors import UserError
from moejax.folder import atomic_write
from moejax.json_text import json_text
from moejax.say import say
from moejax.wording import command, says


def run(arguments: argparse.Namespace) -> int:
    """Copy the files, and print the next steps."""
    out = Path(arguments.folder, FOLDER)
    written, kept = [], []
    for name in packaged_files():
        text, path = (packaged_folder() / name).read_bytes(), out / name
        try:
            if path.exists():
                kept.append((path, path.read_bytes() == text))
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as partial:
                partial.write_bytes(text)
        except OSError as error:
            raise UserError(f"{path} cannot be written ({says('the system', error)}); name another DIR.") from error
        written.append(path)
    changed = [path for path, same in kept if not same]
    if arguments.json:
        found = {"written": written, "kept": [path for path, _ in kept], "changed": changed}
        print(json_text({name: [str(path) for path in paths] for name, paths in found.items()}))
        return 0
    say(f"{len(written)} configs written to {out}, {len(kept)} were there already.", file=sys.stdout)
    for path in changed:
        say(f"moejax: {path} differs from moejax's own and was left as it is.")
    here = "" if Path(arguments.folder) == Path() else f"{command('cd', Path(arguments.folder))} && "
    say(f"next: {here}moejax train --config=configs/tiny.py --out runs/tiny", file=sys.stdout)
    return 0
