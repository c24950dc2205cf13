"""The main example is run as users run it: as a process of its own, killed and started again."""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wires.server import Answer, error, openai, serving

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "digest.py"
PARTS = ["read", "split", "facts:a.md", "facts:sub-b-c.txt", "choose", "short", "store"]


def digest(where: Path, *args: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the example in a folder, with the keys of this machine out of sight."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    path = os.pathsep.join(filter(None, [str(ROOT), clean.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), *args],
        cwd=where,
        env=clean | {"PYTHONPATH": path} | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def parts(out: str) -> dict[str, str]:
    """What became of each part, by the last name on its path."""
    return {path.rpartition("/")[2]: how for how, path in re.findall(r"^  (ran|replayed) +(\S+)$", out, re.MULTILINE)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to work in, with two texts below it and things that are none."""
    notes = tmp_path / "notes"
    (notes / "sub").mkdir(parents=True)
    (notes / ".hidden").mkdir()
    (notes / "a.md").write_text(
        "# Turtles\n\nTurtles carry a heavy shell wherever the turtles happen to go. Few know why.\n\n"
        "```\nturtles turtles turtles\n```\n\n## Shells\n\n- A [shell](http://x.example) is grown by the turtle inside it.\n"
    )
    (notes / "sub" / "b c.txt").write_text("A plain text about harbours, and about the ships that leave a harbour.\n")
    (notes / "picture.png").write_bytes(b"\x89PNG\0")
    (notes / ".hidden" / "no.md").write_text("hidden")
    return tmp_path


def test_a_folder_becomes_a_digest(folder: Path) -> None:
    done = digest(folder, "notes")
    assert (done.returncode, done.stderr) == (0, "")
    report = (folder / "digest.md").read_text()
    assert done.stdout.startswith(report.rstrip("\n") + "\n\ndigest.md written by run digest-")
    assert report.splitlines()[0] == "# Digest of 2 files"
    assert "36 words under 2 headings" in report
    assert "Most frequent: turtles (2), shell (2), " in report  # the heading and the code are not prose
    assert "- **a.md** (23 words): Turtles carry a heavy shell wherever the turtles happen to go." in report
    assert "- **sub/b c.txt** (13 words): A plain text about harbours" in report
    assert parts(done.stdout) == dict.fromkeys(PARTS, "ran")


def test_one_heading_is_no_headings(folder: Path) -> None:
    (folder / "one.md").write_text("# Turtles\n\nTurtles carry a heavy shell wherever the turtles happen to go.\n")
    assert "11 words under 1 heading, " in digest(folder, "one.md").stdout


def test_what_is_quoted_from_a_list_has_no_second_bullet(folder: Path) -> None:
    item = "The harbour keeps its harbour lights lit for every ship in the harbour.\n"
    listed = "".join(f"\n{mark} {number}: {item}" for number, mark in enumerate(("-", "*", "1.")))
    (folder / "notes" / "list.md").write_text(f"# List\n\nOf lights:\n{listed}" + "\nThe tide comes in.\n" * 400)
    report = digest(folder, "notes/list.md").stdout
    assert report.count(f"\n- 0: {item}") == 1 and report.count(item) == 4  # the list, and its first line once more
    assert not re.search(r"^- (?:[-*]|1\.) ", report, re.MULTILINE)


def test_who_reads_only_the_beginning_gets_no_traceback(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "notes"],
            cwd=folder,
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"")
    assert (folder / "digest.md").exists()


def test_a_long_text_gets_a_section_per_file(folder: Path) -> None:
    (folder / "notes" / "long.md").write_text("# Long\n\n" + "The tide comes in twice a day at this coast. " * 200)
    done = digest(folder, "notes")
    assert "## long.md\n\n- Headings: Long\n- Terms: tide (200), comes (200), twice (200), coast (200)" in done.stdout
    assert parts(done.stdout)["long"] == "ran"


@pytest.mark.parametrize("crash_after", PARTS)
def test_a_killed_run_goes_on_where_it_was(folder: Path, crash_after: str) -> None:
    killed = digest(folder, "notes", "--crash-after", crash_after)
    assert killed.returncode == -signal.SIGKILL
    assert killed.stderr == f"killed after {crash_after}: run it again without --crash-after\n"
    resumed = digest(folder, "notes")
    assert resumed.returncode == 0
    how = parts(resumed.stdout)
    assert set(how) == set(PARTS)
    done = PARTS[: PARTS.index(crash_after) + 1]
    # files side by side may or may not have been done, and storing is not remembered
    certain = [part for part in PARTS[:-1] if part == crash_after or not part.startswith("facts:")]
    certain = certain if crash_after.startswith("facts:") else PARTS[:-1]
    assert [how[part] for part in certain] == ["replayed" if part in done else "ran" for part in certain]
    assert how["store"] == "ran"
    other = folder / "other"
    other.mkdir()
    assert digest(other, "../notes").returncode == 0
    assert (folder / "digest.md").read_bytes() == (other / "digest.md").read_bytes()


def test_a_finished_run_replays_and_brings_back_its_file(folder: Path) -> None:
    first = digest(folder, "notes", "--run-id", "r-1")
    (folder / "digest.md").unlink()
    again = digest(folder, "notes", "--run-id", "r-1", "--crash-after", "read")  # what is replayed does not end again
    assert again.stdout.partition("digest.md written")[0] == first.stdout.partition("digest.md written")[0]
    assert (folder / "digest.md").exists()
    assert parts(again.stdout) == dict.fromkeys(PARTS[:-1], "replayed") | {"store": "ran"}


def test_changed_content_is_another_run(folder: Path) -> None:
    digest(folder, "notes")
    (folder / "notes" / "a.md").write_text("Something else entirely stands here now, in eleven words or so.")
    changed = digest(folder, "notes")
    assert parts(changed.stdout)["read"] == "ran"
    named = digest(folder, "notes", "--run-id", "r-1")
    assert named.returncode == 0
    (folder / "notes" / "a.md").write_text("And changed again.")
    refused = digest(folder, "notes", "--run-id", "r-1")
    assert refused.returncode == 1
    assert "run r-1 was started with another input: give another --run-id" in refused.stderr
    assert "replace=True" not in refused.stderr


def test_the_digest_is_no_part_of_itself(folder: Path) -> None:
    first = digest(folder, "notes", "--out", "notes/digest.md")
    again = digest(folder, "notes", "--out", "notes/digest.md")
    assert again.stdout.startswith(first.stdout.partition("  ran")[0])


def test_names_that_become_one_id_stay_apart(tmp_path: Path) -> None:
    for name in ("x y.md", "x-y.md", "ä.md"):
        (tmp_path / name).write_text(f"A text of its own that stands in {name} and in no other.")
    done = digest(tmp_path, ".")
    assert done.returncode == 0
    assert [part for part in parts(done.stdout) if part.startswith("facts:")] == [
        "facts:x-y.md",
        "facts:x-y.md:1",
        "facts:-.md",
    ]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["nowhere"], 2, "nowhere: no such file or folder"),
        (["notes/picture.png"], 2, "notes/picture.png: not a text file"),
        (["empty"], 2, "no text files (.md, .markdown, .txt) in empty"),
        (["notes", "--crash-after", "nothing"], 2, "no such part; there are read, split, facts:a.md"),
        (["notes", "--out", "missing/digest.md"], 1, "No such file or directory: 'missing/digest.md'"),
        (["notes", "--out", "empty"], 1, "Is a directory: 'empty'"),
        (["notes", "--run-id", "a/b"], 1, "'a/b' is no run id"),
    ],
)
def test_what_cannot_be_done_is_said(folder: Path, args: list[str], code: int, says: str) -> None:
    (folder / "empty").mkdir()
    done = digest(folder, *args)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_report_that_could_not_be_stored_is_not_written_twice(folder: Path) -> None:
    assert "the same command goes on" in digest(folder, "notes", "--out", "missing/digest.md").stderr
    done = digest(folder, "notes", "--out", "elsewhere.md")
    assert parts(done.stdout) == dict.fromkeys(PARTS[:-1], "replayed") | {"store": "ran"}


async def test_with_a_key_the_model_writes_the_report(folder: Path) -> None:
    said = Answer(openai({"content": "# By a model\n\n"}, {"content": "Turtles."}))
    async with serving(said) as wire:
        env = {"OPENAI_API_KEY": "sk-nobody", "OPENAI_BASE_URL": f"{wire.url}/v1", "OPENAI_MODEL": "some-model"}
        killed = await asyncio.to_thread(digest, folder, "notes", "--crash-after", "short", **env)
        done = await asyncio.to_thread(digest, folder, "notes", **env)
    assert killed.returncode == -signal.SIGKILL
    assert done.returncode == 0
    assert (folder / "digest.md").read_text() == "# By a model\n\nTurtles.\n"
    assert parts(done.stdout)["short"] == "replayed"
    (asked,) = wire.requests  # the model is paid once
    assert asked.body["model"] == "some-model"
    system, user = asked.body["messages"]
    assert (system["role"], user["role"]) == ("system", "user")
    assert "short digest" in system["content"]
    assert user["content"].startswith("# Digest of 2 files")


async def test_a_model_that_refuses_ends_the_run_with_its_words(folder: Path) -> None:
    async with serving(error(400, "no such model")) as wire:
        env = {"OPENAI_API_KEY": "sk-nobody", "OPENAI_BASE_URL": f"{wire.url}/v1"}
        done = await asyncio.to_thread(digest, folder, "notes", **env)
    assert (done.returncode, len(wire.requests)) == (1, 1)
    assert "no such model" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_documents_of_the_project_are_the_default(tmp_path: Path) -> None:
    done = digest(tmp_path)
    assert done.returncode == 0
    assert "- **README.md** (" in done.stdout
    assert "- **docs/guide.md** (" in done.stdout


def test_the_session_in_the_readme_is_real(tmp_path: Path) -> None:
    session = re.search(
        r"^\$ \.venv\S+ \S+ [^\n]*--crash-after.*?(?=^```)",
        (ROOT / "README.md").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert session is not None
    shown = session[0].replace("Killed\n", "")  # the shell says it
    real = ""
    for command in re.findall(r"^\$ .*", shown, re.MULTILINE):
        python, script, *args = shlex.split(command)[1:]
        assert (python, script) == (".venv/bin/python", "examples/digest.py")
        done = digest(tmp_path, *args)
        real += f"{command}\n{done.stderr}{done.stdout}"
    before, after = shown.split("…\n")
    assert real.startswith(before)
    assert real.endswith(after)
