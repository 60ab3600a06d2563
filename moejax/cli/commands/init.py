"""Copy moejax's config files to a folder where they can be run and changed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from moejax.cli.options import Command, argument
from moejax.errors import UserError
from moejax.folder import atomic_write
from moejax.json_text import json_text
from moejax.say import say
from moejax.wording import command, says

EXAMPLE = """\
  moejax init
  moejax init mine
  moejax init mine --json"""


@dataclass(frozen=True, kw_only=True)
class InitCommand(Command, name="init"):
    """Copy moejax's own configs (a tiny training, the quickstart, the studies of five papers, plans of published
    models) to DIR/configs, to run and to change. Existing files are left unchanged. A config that is not changed needs
    no copy: --config=tiny and --config=studies/zhao:G are found wherever moejax is installed.
    """

    folder: str = argument("where configs/ is written", metavar="DIR", default=".")

    def run(self) -> None:
        from moejax.cli.config_file import FOLDER, packaged_files, packaged_folder

        out = Path(self.folder, FOLDER)
        written, kept, changed = [], [], []
        for name in packaged_files():
            text, path = (packaged_folder() / name).read_bytes(), out / name
            try:
                if path.exists():
                    kept.append(path)
                    changed += [path] if path.read_bytes() != text else []
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as partial:
                    partial.write_bytes(text)
            except OSError as error:
                raise UserError(f"{path} cannot be written ({says('the system', error)}); name another DIR.") from error
            written.append(path)
        if self.json:
            places = {"written": written, "kept": kept, "changed": changed}
            print(json_text({name: [str(path) for path in paths] for name, paths in places.items()}))
            return
        say(f"{len(written)} configs written to {out}, {len(kept)} were there already.", file=sys.stdout)
        for path in changed:
            say(f"moejax: {path} differs from moejax's own and was left unchanged.")
        here = "" if Path(self.folder) == Path() else f"{command('cd', Path(self.folder))} && "
        say(f"next: {here}moejax train --config=configs/tiny.py --out runs/tiny", file=sys.stdout)
