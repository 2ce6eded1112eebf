"""The Python examples of the README and the docs run, and print what they say."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(code, output, id=f"{page.stem}-{i}")
    for page in PAGES
    for i, (code, output) in enumerate(
        re.findall(r"```python\n(.*?)```(?:\n\nprints\n\n```text\n(.*?)```)?", page.read_text(encoding="utf-8"), re.S)
    )
]


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_example(code, output):
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "example", "exec"), {"__name__": "example"})
    if output:
        assert out.getvalue() == output


def test_there_is_an_example():
    assert EXAMPLES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
