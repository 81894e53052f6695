"""Templates of pages: what a user wrote cannot become markup, numbers are said in one way, a missing value is an error."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from dgnet.report.templates import environment, figure, percent, write_page

NASTY = "</script><b onclick='x'>&amp;"


def test_words_of_a_user_are_escaped(tmp_path: Path) -> None:
    page = write_page(tmp_path / "page.html", "followed.html", title=NASTY, heading=NASTY, mood="good", word=NASTY, time=1.5,
                      notes=[NASTY], folder=tmp_path, events=[(NASTY, NASTY, NASTY)], assumed=[NASTY]).read_text()
    assert "<b onclick" not in page and "</script>" not in page
    assert page.count("&lt;/script&gt;&lt;b onclick=&#39;x&#39;&gt;&amp;amp;") == 8
    assert "t = 1.5." in page and "<img" not in page  # pictures that do not exist


def test_json_cannot_end_its_script() -> None:
    text = environment().from_string("<script>{{ value|json }}</script>").render(value={"name": NASTY})
    assert text.count("</script>") == 1 and "\\u003c/script" in text


def test_a_missing_value_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(jinja2.UndefinedError):
        write_page(tmp_path / "page.html", "followed.html", title="x")
    assert not list(tmp_path.iterdir())


def test_numbers() -> None:
    assert percent(0.0017) == "0.17%" and percent(float("inf")) == "unbounded" and percent(1.23) == "123%"
    assert figure(None) == "–" and figure(0.012345) == "0.0123" and figure(float("nan")) == "unbounded"
