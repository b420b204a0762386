"""Remake the README's picture: the first screen and the frontier of the quickstart's report, as Chromium shows them.

leakline run quickstart, then: python tests/browser/picture.py runs/quickstart/report.html docs/assets/report.png
The quickstart's data are handwritten digits that anybody has, and the picture shows none of them.
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from pathlib import Path

from conftest import Browser, Tab

WIDTH = 1440
PARTS = (
    "[0, document.querySelector('table.glance').closest('.scroll').getBoundingClientRect().bottom + scrollY + 6]",
    "[document.querySelector('#charts').getBoundingClientRect().top + scrollY - 8, document.querySelector('.charts').getBoundingClientRect().bottom + scrollY + 24]",  # noqa: E501
)


def main(report: Path, out: Path) -> None:
    """Two clips of the page, one below the other, in as few colours as they need."""
    from PIL import Image

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:  # the browser may still be writing
        browser = Browser(Path(home))
        try:
            tab = Tab(browser, WIDTH, 900, "light", True)
            tab.open(report)
            tab.run("document.querySelector('#charts').scrollIntoView(); new Promise(r => setTimeout(r, 3000))")
            tab.wait(lambda: tab.run("document.querySelectorAll('.charts .main-svg').length") > 1, "the frontier")
            tab.run("window.scrollTo(0, 0)")  # the filters stay on top of what they filter
            pieces = []
            for top, bottom in (tab.run(part) for part in PARTS):
                clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top, "scale": 1}
                data = tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
                pieces.append(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
        finally:
            browser.close()
    whole = Image.new("RGB", (WIDTH, sum(piece.height for piece in pieces)))
    at = 0
    for piece in pieces:
        whole.paste(piece, (0, at))
        at += piece.height
    out.parent.mkdir(parents=True, exist_ok=True)
    whole.quantize(256, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
