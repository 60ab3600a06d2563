"""Copy moejax's configs to a folder, or write a config that continues a checkpoint."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from moejax.cli.options import Command, argument, local, option
from moejax.errors import UserError
from moejax.folder import atomic_write
from moejax.json_text import json_text
from moejax.say import say
from moejax.wording import command, says

EXAMPLE = """\
  moejax init
  moejax init mine --json
  moejax init --from Mixtral-8x7B-v0.1 continued"""


@dataclass(frozen=True, kw_only=True)
class InitCommand(Command, name="init"):
    """Copy moejax's example configs (a tiny training run, the quickstart, the studies of five papers, and plans of
    published models) to DIR/configs, where you can edit them. Existing files are not overwritten. To run a config
    without editing it, pass its name from any folder: --config=tiny or --config=studies/zhao:G. With --from, write a
    config that continues the training of a Hugging Face checkpoint, and the checkpoint's weights to DIR/weights.
    """

    folder: str = argument("folder in which configs/ is written", metavar="DIR", default=".")
    source: Path | None = option(
        None,
        "folder of a Hugging Face checkpoint whose training the config continues",
        flag="from",
        metavar="HF_DIR",
        read=local,
    )

    def run(self) -> None:
        if self.source is not None:
            self._continue(self.source)
            return
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
        say(f"{len(written)} configs written to {out}, {len(kept)} already existed.", file=sys.stdout)
        for path in changed:
            say(f"moejax: {path} differs from moejax's config of this name and was not overwritten.")
        here = "" if Path(self.folder) == Path() else f"{command('cd', Path(self.folder))} && "
        say(f"next: {here}moejax train --config=configs/tiny.py --out runs/tiny", file=sys.stdout)

    def _continue(self, source: Path) -> None:
        from moejax.cli.config_file import FOLDER
        from moejax.cli.out_folder import out_folder
        from moejax.cli.progress import progress
        from moejax.huggingface.checkpoint import read_config
        from moejax.huggingface.continued_config import continued_config
        from moejax.huggingface.conversion import from_huggingface

        _, options = read_config(source)
        title = source.resolve().name
        name = re.sub("[^a-z0-9]+", "_", title.lower()).strip("_") or "continued"
        config, weights = Path(self.folder, FOLDER, f"{name}.py"), Path(self.folder, "weights", name)
        for path in (config, weights):
            if os.path.lexists(path):
                raise UserError(f"{path} already exists and is not replaced; name another DIR, or move it.")
        # The config's place is opened before the conversion, which may take hours.
        with out_folder(config.absolute().parent, shared=True), atomic_write(config) as partial:
            with out_folder(weights.absolute().parent, shared=True), progress() as show:
                done = from_huggingface(source, weights, progress=show)
            text = continued_config(done, options, title=title, name=name, config=str(config))
            partial.write_text(text, encoding="utf-8")
        if self.json:
            print(json_text({"written": [str(config), str(weights)], "kept": [], "changed": []}))
            return
        say(f"{config} continues the training of {title} from {weights}.", file=sys.stdout)
        if "tokenizer.json" not in done.files:
            say(f"! {source} has no tokenizer.json: set data.tokenizer in {config}.")
        if fault := done.architecture.fault_in_training:
            say(f"! Change the config before training continues: {fault}")
        words = ("moejax", "train", f"--config={config}", "--config.recipe.data.source=TEXTS")
        say(f"next: {command(*words, '--out', f'runs/{name}')}", file=sys.stdout)
