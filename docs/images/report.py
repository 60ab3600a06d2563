"""Takes the picture of the README: a study's page from its top in light, and its decisions in dark.

make quickstart && make browser && python docs/images/report.py runs/quickstart/report.html docs/images/report.png
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 940, 1550
SMALLER = 0.8


def main(page: str, out: str) -> None:
    """Two halves of one height, side by side."""
    picture = Image.new("RGB", (2 * WIDTH, HEIGHT))
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for left, (scheme, part) in enumerate([("light", "body"), ("dark", "#decisions")]):
            window = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            window.goto(Path(page).resolve().as_uri())
            window.locator(part).first.evaluate("element => window.scrollTo(0, element.offsetTop - 16)")
            picture.paste(Image.open(io.BytesIO(window.screenshot())), (left * WIDTH, 0))
        browser.close()
    size = [round(SMALLER * side) for side in picture.size]
    picture.resize(size, Image.Resampling.LANCZOS).quantize(256, Image.Quantize.MAXCOVERAGE).save(out, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
