"""Every piece of Python that the documents show runs as shown."""

import ast
import asyncio
import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import bb

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
MODULES = ["bb", *(info.name for info in pkgutil.walk_packages(bb.__path__, "bb."))]

FENCE = re.compile(
    r"^(?P<indent>[ ]*)(?P<fence>`{3,}|~{3,})[ ]*(?P<language>[^\s`{]*)[^\n]*\n(?P<code>.*?)^[ ]*(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)


class Snippet(NamedTuple):
    """A piece of Python in a document, and the line it begins at."""

    line: int
    code: str


def snippets(text: str) -> list[Snippet]:
    """The Python of a document.

    Raises:
        ValueError: a block is Python under another name, and so would not be run.
    """
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        language = match["language"].lower()
        if language == "python":
            found.append(Snippet(line, textwrap.dedent(match["code"])))
        elif language in {"py", "py3", "python3", "pycon", "ipython"}:
            raise ValueError(f"line {line}: write ```python, so that the block is run")
    return found


def run(document: str, text: str) -> dict[str, Any]:
    """Run the snippets of a document one after the other in one namespace; `await` may stand at the top level."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for line, source in snippets(text):
            padded = "\n" * line + source  # an error names the line of the document
            code = compile(padded, document, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, namespace))
            else:
                exec(code, namespace)
    return namespace


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the examples write stays out of the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_snippets_of_a_document_run(document: str) -> None:
    run(document, (ROOT / document).read_text("utf-8"))


def test_the_readme_shows_python() -> None:
    assert snippets((ROOT / "README.md").read_text("utf-8"))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
    tree = ast.parse(inspect.getsource(module))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
    assert [doc for doc in docs if "```" in doc] == [], "write examples as doctests, so that they are run"


def test_snippets_share_a_namespace_and_may_await() -> None:
    text = (
        "A:\n\n```python\nimport asyncio\nx = 1\n```\n\n- B:\n\n  ~~~python\n  x += await asyncio.sleep(0, 2)\n  ~~~\n"
    )
    assert [snippet.line for snippet in snippets(text)] == [3, 10]
    assert run("doc.md", text)["x"] == 3


def test_a_snippet_that_fails_names_its_line() -> None:
    with pytest.raises(ZeroDivisionError) as failure:
        run("doc.md", "\n\n```python\nx = 0\n1 / x\n```\n")
    assert (failure.traceback[-1].path, failure.traceback[-1].lineno) == ("doc.md", 4)


def test_other_languages_are_left_alone_and_no_python_hides_among_them() -> None:
    assert snippets("```bash\npip install bb-flow\n```\n\n```\nplain\n```\n") == []
    with pytest.raises(ValueError, match="line 1"):
        snippets("```py\n1 / 0\n```\n")
