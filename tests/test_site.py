"""The built pages in a real browser, from disk and without the network: nothing is missing, formulas are drawn, nothing is cut off.

Without the extra `docs`, playwright or Chromium it is skipped. `pytest -m slow tests/test_site.py`; screenshots go to out/site.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

for name in ("mkdocs", "mkdocstrings_handlers", "latex2mathml"):
    pytest.importorskip(name)
api = pytest.importorskip("playwright.sync_api")
CHROMIUM, ROOT = Path("/usr/bin/chromium"), Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Chromium")]
WIDTHS = (1400, 400)  # pixels

# what ends right of the window and cannot be scrolled to by itself
CUT_OFF = """() => {
  const wide = document.documentElement.clientWidth, found = [];
  const scrolls = e => e !== document.body && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  for (const e of document.querySelectorAll('.rst-content *')) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > wide + 1 && !scrolls(e)) found.push(e.tagName + ' ' + e.textContent.trim().slice(0, 60));
  }
  return found;
}"""
# formulas that are still LaTeX; code may have backslashes
LATEX = r"""() => {
  const copy = document.querySelector('.rst-content').cloneNode(true);
  copy.querySelectorAll('pre, code').forEach(e => e.remove());
  return copy.textContent.match(/\\[a-zA-Z]+|\\[()\[\]]|\$[^$\n]+\$/g) || [];
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_from_disk(site: Path) -> None:
    shots, wrong, formulas = ROOT / "out" / "site", list[str](), 0
    shots.mkdir(parents=True, exist_ok=True)
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        context = browser.new_context(offline=True)
        page = context.new_page()
        page.on("request", lambda r: r.url.startswith(("file:", "data:")) or wrong.append(f"asks the network for {r.url}"))
        page.on("requestfailed", lambda r: wrong.append(f"{page.url}: no {r.url}"))
        page.on("pageerror", lambda e: wrong.append(f"{page.url}: {e}"))
        pages = sorted(p for p in site.rglob("*.html") if p.name != "404.html")  # 404.html is for servers
        assert len(pages) > 50
        for path in pages:
            page.goto(path.as_uri())
            formulas += page.locator("math").count()
            wrong += [f"{path.name} shows {text}" for text in page.evaluate(LATEX)]
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                wrong += [f"{path.relative_to(site)} at {width} pixels cuts off {text}" for text in page.evaluate(CUT_OFF)]
                if path.name in ("method.html", "gallery.html"):
                    page.screenshot(path=shots / f"{path.stem}-{width}.png")
        page.goto(f"{(site / 'search.html').as_uri()}?q=crank")
        page.get_by_role("link", name="From the equation to a step").first.wait_for()
        browser.close()
    assert not wrong, "\n".join(wrong[:40])
    assert formulas > 60
