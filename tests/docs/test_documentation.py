"""What the documentation shows happens, and what it names exists.

A block below `<!-- tested -->` is typed: lines after `$ ` are commands, each begun in the directory
where the one before ended; what is below a command it must print, `...` standing for anything. A
block below `<!-- tested: FILE -->` is written to that file; what is YAML is loaded, too. The blocks
of a page come one after the other in one directory, which is empty in the beginning.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import click
import pytest
import yaml
from keys import with_tables
from support import REPOSITORY, run

from snakemake_kochi.cli.main import kochi
from snakemake_kochi.executor.plugin import ExecutorSettings
from snakemake_kochi.phases.make import NOT_SOURCES
from snakemake_kochi.phases.node import VARIABLES
from snakemake_kochi.phases.sources import given_now
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.sweeps import Given
from snakemake_kochi.project.values import SUBSTITUTED, TABLE_COLUMNS

PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")])
PACKAGE = REPOSITORY / "snakemake_kochi"
SITE = "https://snakemake-kochi.readthedocs.io/en/latest/"
SOURCES = "https://github.com/snakemake-kochi/snakemake_kochi/blob/main/"
# Said to be missing: when one comes, the pages that say so must change.
NOT_YET: set[str] = set()

PROGRAMS = {"kochi": "snakemake_kochi.cli", "snakemake": "snakemake"}
SPECIAL = "$`\\|&;<>()*?[]~#\n"  # what a shell does not take as it is
VARIABLE = r"\bKOCHI_[A-Z_]+"
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block and the remark above it."""

    line: int
    mark: str
    language: str
    text: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command with the lines below it."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.M)[1:]
        return list(zip(parts[::2], parts[1::2], strict=True))


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            line=text.count("\n", 0, found.start()) + 1,
            mark=found["mark"] or "",
            language=found["language"],
            text=found["text"],
        )
        for found in _BLOCK.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its blocks."""
    return _BLOCK.sub("", page.read_text("utf-8"))


def typed_lines(page: Path) -> Iterator[str]:
    """Commands in blocks, and whatever is set as code in the text."""
    for block in blocks(page):
        yield from (command for command, _ in block.commands)
    for span in _SPAN.findall(prose(page)):
        yield " ".join(span.replace("\\|", "|").split())


def name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


# ---- what is shown happens


class Terminal:
    """Types what a page shows, in a directory."""

    def __init__(self, directory: Path, programs: Path) -> None:
        self.directory = directory
        self._state = programs / "directory"
        # A fixed width: help is wrapped to that of the terminal the tests are started in.
        self._environment = {"PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "80"}

    def follow(self, page: Path) -> None:
        for block in blocks(page):
            kind, _, file = block.mark.partition(": ")
            if kind != "tested":
                continue
            if file:
                self._write(file, block)
            for command, shown in [] if file else block.commands:
                self._type(command, shown, f"{name(page)}, line {block.line}")

    def _write(self, file: str, block: Block) -> None:
        path = self.directory / file
        path.write_text(block.text, "utf-8")
        if file == "kochi.yaml":
            load_project(self.directory)
        elif block.language == "yaml":
            project = load_project(self.directory)
            given = given_now(file, block.text, project.machine("local"), self.directory)
            experiment = load_experiment(file, block.text, project, given)
            for batch in experiment.batches:
                assert experiment.grid(batch, "local").points

    def _type(self, command: str, shown: str, where: str) -> None:
        program, *words = shlex.split(command)
        if program in PROGRAMS and not set(command) & set(SPECIAL):
            # Many programs are started: these two need not import anything first.
            module = (sys.executable, "-P", "-m", PROGRAMS[program])
            done = run(*module, *words, cwd=self.directory, env=self._environment)
        else:
            script = f"set -euo pipefail\n{command}\npwd > {shlex.quote(str(self._state))}"
            done = run("bash", "-c", script, cwd=self.directory, env=self._environment)
        assert done.returncode == 0, where
        if self._state.exists():
            self.directory = Path(self._state.read_text().removesuffix("\n"))
        assert prints(done.stdout, shown), f"{where}: this was shown:\n{shown}"


def prints(output: str, shown: str) -> bool:
    """Whether an output is as shown: `...` stands for any text in a line, and alone in a line for
    any number of lines. Blanks at the end of lines, which editors remove, do not count, and a block
    that shows nothing promises nothing."""
    expected = ""
    for line in _lines(shown):
        parts = ".*".join(re.escape(part) for part in line.split("..."))
        expected += r"(?:.*\n)*" if line == "..." else rf"{parts}\n"
    printed = "".join(f"{line}\n" for line in _lines(output))
    return not shown.strip() or re.fullmatch(expected, printed) is not None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").split("\n")]


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A shell in an empty directory that has this checkout's commands."""
    programs, directory = tmp_path / "programs", tmp_path / "here"
    directory.mkdir()
    programs.mkdir()
    for program, module in PROGRAMS.items():
        path = programs / program
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {module} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Terminal(directory, programs)


def test_the_readme_can_be_followed_to_the_letter(terminal: Terminal) -> None:
    terminal.follow(REPOSITORY / "README.md")


def test_the_tutorial_and_the_guides_after_it_can_be_followed_to_the_letter(
    terminal: Terminal,
) -> None:
    for page in ("tutorial.md", "publishing.md", "own-snakefile.md", "jobs-by-hand.md"):
        terminal.follow(REPOSITORY / "docs" / page)
    page = str(REPOSITORY / "docs" / "python.md")
    doctest = (sys.executable, "-P", "-m", "doctest", "-o", "ELLIPSIS", page)
    assert run(*doctest, cwd=terminal.directory).returncode == 0


def test_the_comparison_can_be_followed_to_the_letter(terminal: Terminal) -> None:
    terminal.follow(REPOSITORY / "docs" / "comparing.md")


def test_further_can_be_followed_to_the_letter(terminal: Terminal) -> None:
    terminal.follow(REPOSITORY / "docs" / "further.md")


def test_the_page_about_a_file_of_commands_can_be_followed_to_the_letter(
    terminal: Terminal,
) -> None:
    terminal.follow(REPOSITORY / "docs" / "farm.md")


def test_the_scaling_study_can_be_followed_to_the_letter(terminal: Terminal) -> None:
    terminal.follow(REPOSITORY / "docs" / "scaling.md")


def test_the_page_about_interactive_jobs_can_be_followed_to_the_letter(terminal: Terminal) -> None:
    terminal.follow(REPOSITORY / "docs" / "interactive.md")


FORMATS = REPOSITORY / "docs" / "formats.md"
OTHER_KEYS = ("cluster", "cleaning", "isolation", "undisturbed")


def test_the_page_about_parts_of_batches_can_be_followed_to_the_letter(terminal: Terminal) -> None:
    terminal.follow(REPOSITORY / "docs/watching.md")


def test_the_formats_can_be_followed_to_the_letter(terminal: Terminal) -> None:
    terminal.follow(FORMATS)


def test_the_values_in_the_formats_come_out_as_their_remarks_say() -> None:
    (block,) = (b for b in blocks(FORMATS) if b.mark == "tested: expressions.yaml")
    remarks = re.findall(r"^ +(\w+):.* # (.+)$", block.text, re.M)
    assert remarks
    points = load_experiment("expressions.yaml", block.text, None).grid("grid", "local").points
    for parameter, said in remarks:
        expected = [text.strip().strip('"') for text in said.split(",")]
        assert list(dict.fromkeys(p.parameters[parameter] for p in points)) == expected, parameter


def test_the_sweeps_in_the_formats_have_as_many_points_as_their_remarks_say() -> None:
    (block,) = (b for b in blocks(FORMATS) if b.mark == "tested: sweeps.yaml")
    (table,) = (b for b in blocks(FORMATS) if b.mark == "tested: points.csv")
    given = Given("local", {"cores": "4", "nodes": "1"}, tables={"points.csv": table.text})
    experiment = load_experiment("sweeps.yaml", block.text, None, given)
    remarks = re.findall(r"^  (\w+): # (\d+) points(?:, (\d+) skipped)?$", block.text, re.M)
    assert [name for name, _, _ in remarks] == list(experiment.batches)
    for name, points, skipped in remarks:
        grid = experiment.grid(name, "local")
        assert (len(grid.points), len(grid.skipped)) == (int(points), int(skipped or 0)), name


def keys(schema: object) -> Iterator[str]:
    """All keys of the files that a schema describes."""
    if isinstance(schema, dict):
        yield from schema.get("properties") or ()
        for part in schema.values():
            yield from keys(part)


@pytest.mark.parametrize("kind", ["kochi", "experiment"])
def test_the_pages_describe_every_key(kind: str) -> None:
    schema = yaml.safe_load((REPOSITORY / f"workflow/schemas/{kind}.schema.yaml").read_text())
    pages = (FORMATS, *(FORMATS.with_name(f"{each}.md") for each in OTHER_KEYS))
    spans = (span for page in pages for span in _SPAN.findall(prose(page)))
    in_code = set(re.findall(r"[\w]+", " ".join(spans)))
    assert set(keys(schema)) - {"machines", "dependencies"} <= in_code


def test_the_tables_of_keys_are_those_of_the_schemas() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        assert with_tables(text) == text, "type: python tools/keys.py"


def listed_below(mark: str) -> list[str]:
    """What stands as code in the paragraph below a remark of the formats."""
    _, _, after = FORMATS.read_text("utf-8").partition(f"<!-- {mark} -->\n")
    return re.findall(r"`([^`]+)`", after.partition("\n\n")[0])


def test_the_formats_list_the_reserved_names_and_what_is_no_source() -> None:
    assert listed_below("reserved names") == [*SUBSTITUTED, *TABLE_COLUMNS]
    assert listed_below("not sources") == list(NOT_SOURCES)


@pytest.mark.parametrize(
    ("output", "shown", "expected"),
    [
        ("a\nb\n", "a\nb\n\n", True),
        ("a\nb\nc\n", "a\n...\nc\n", True),
        ("a\nc\n", "a\n...\nc\n", True),
        ("Job 7\nwas\n", "Job ... was\n", False),
        ("Job 7 was  \n", "Job ... was\n", True),
        ("a\nb\n", "a\n", False),
        ("a.b", "a?b", False),
        ("anything", "", True),
    ],
)
def test_an_output_is_compared_with_what_is_shown(output: str, shown: str, expected: bool) -> None:
    assert prints(output, shown) is expected


def test_the_readme_shows_the_commands_of_the_demo() -> None:
    (demo,) = (b for b in blocks(REPOSITORY / "README.md") if b.mark == "the demo")
    shown = [command for command, _ in demo.commands]
    script = (REPOSITORY / "examples" / "demo.sh").read_text()
    typed = re.findall(r"^run (.*)$", script, re.M)
    profile = "../../../profiles/local"  # seen from build/demo/fib
    assert shown == ["make demo", *(line.replace('"$profile"', profile) for line in typed)]


def test_the_readme_shows_the_first_file_of_the_tutorial() -> None:
    (first,) = (b for b in blocks(REPOSITORY / "docs/tutorial.md") if b.mark == "tested: sort.yaml")
    assert first.text in [block.text for block in blocks(REPOSITORY / "README.md")]


# ---- what is named exists


def on_all_pages(find: Callable[[Path], Iterable[str]]) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for found in find(page):
            yield page, found


def parse(words: list[str]) -> None:
    """Parse a line of kochi's as far as its commands and options. Raises click.UsageError."""
    context = click.Context(kochi, info_name="kochi", **kochi.context_settings)
    command: click.Command = kochi
    while True:
        _, rest, _ = command.make_parser(context).parse_args(list(words))
        if not isinstance(command, click.Group) or not rest:
            return
        found, following, words = command.resolve_command(context, rest)
        assert following is not None
        command = following
        settings = command.context_settings
        context = click.Context(command, parent=context, info_name=found, **settings)


def test_each_command_of_kochi_exists_with_its_options() -> None:
    wrong = []
    for page, line in on_all_pages(typed_lines):
        words = shlex.split(line.partition(" > ")[0]) if line.startswith("kochi ") else []
        if not words or words[1] in NOT_YET:
            continue
        try:
            parse(words[1:])
        except click.UsageError as error:
            wrong.append(f"{name(page)}: {line}: {error.format_message()}")
    assert wrong == []


def test_a_command_that_does_not_exist_would_be_found() -> None:
    for words in (["sow"], ["show", "job", "--colour"], ["artifact", "zync"]):
        with pytest.raises(click.UsageError):
            parse(words)


def test_what_is_said_to_be_missing_is_missing() -> None:
    context = click.Context(kochi, info_name="kochi")
    assert NOT_YET.isdisjoint(kochi.list_commands(context))
    limits = (REPOSITORY / "README.md").read_text().partition("## Known limits")[2]
    assert {command for command in NOT_YET if f"`kochi {command}`" in limits} == NOT_YET


def test_all_settings_are_described_and_no_others() -> None:
    existing = {f"--kochi-{field.name.replace('_', '-')}" for field in fields(ExecutorSettings)}
    further = (REPOSITORY / "docs" / "further.md").read_text()
    assert existing == set(re.findall(r"--kochi-[\w-]+", further))
    for page in PAGES:
        assert set(re.findall(r"--kochi-[\w-]+", page.read_text())) <= existing, name(page)


def test_each_variable_is_one_of_ours() -> None:
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    ours = set(re.findall(VARIABLE, code))
    made = ("KOCHI_PARAM_", "KOCHI_INSTALL_PREFIX_", "KOCHI_RECIPE_", "KOCHI_ALLOC_")
    named = on_all_pages(lambda page: re.findall(VARIABLE, page.read_text()))
    assert [
        (name(page), variable)
        for page, variable in named
        if not variable.startswith(made) and variable not in ours
    ] == []


def test_each_target_of_make_exists() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    for page, line in on_all_pages(typed_lines):
        words = shlex.split(line) if line.startswith("make ") else []
        assert {word for word in words[1:] if "=" not in word} <= targets, (name(page), line)


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", page.read_text(), re.M)


def is_on_the_site(target: str) -> bool:
    """Whether there are such a page and heading, with the identifier that docutils makes."""
    file, _, fragment = target.partition("#")
    page = REPOSITORY / "docs" / file
    if not page.is_file() or not fragment:
        return page.is_file()
    return fragment in [re.sub(r"[^a-z0-9]+", "-", h.lower()).strip("-") for h in headings(page)]


def test_the_pages_of_the_plugin_catalog_have_only_absolute_links() -> None:
    for page in ("intro.md", "further.md"):
        targets = re.findall(r"\]\(([^)\s]+)\)", (REPOSITORY / "docs" / page).read_text())
        assert targets and all(target.startswith("https://") for target in targets), page


def test_every_page_is_on_the_site() -> None:
    index = (REPOSITORY / "docs" / "index.md").read_text()
    listed = re.findall(r"^([\w-]+)$", index, re.M)
    existing = {path.stem for path in (REPOSITORY / "docs").glob("*.md")}
    assert sorted(listed) == sorted(existing - {"index", "intro"})


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = run(
        *(sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"),
        *(str(REPOSITORY / "docs"), str(tmp_path / "site")),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    assert 'id="kochi-enqueue"' in (tmp_path / "site" / "commands.html").read_text()


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_each_link_leads_somewhere() -> None:
    links = on_all_pages(lambda page: re.findall(r"\]\(([^)\s]+)\)", prose(page)))
    assert [(name(page), link) for page, link in links if not leads_somewhere(page, link)] == []


def leads_somewhere(page: Path, link: str) -> bool:
    if link.startswith(SITE):
        return is_on_the_site(link.removeprefix(SITE).replace(".html", ".md"))
    if link.startswith(SOURCES):
        return (REPOSITORY / link.removeprefix(SOURCES)).exists()
    if link.startswith("https://"):
        return True
    file, _, fragment = link.partition("#")
    linked = page.parent / file if file else page
    return linked.exists() and (not fragment or fragment in map(anchor, headings(linked)))


def test_each_module_exists() -> None:
    bases = (PACKAGE, REPOSITORY, REPOSITORY / "workflow")
    named = on_all_pages(lambda page: re.findall(r"[\w/]+\.py\b", page.read_text()))
    assert [
        (name(page), module)
        for page, module in named
        if not any((base / module).is_file() for base in bases)
    ] == []


def test_the_architecture_page_names_each_package_and_no_others() -> None:
    listing = (REPOSITORY / "docs" / "architecture.md").read_text().partition("## Packages")[2]
    listed = set(re.findall(r"^  (\w+)/ ", listing.partition("\n## ")[0], re.M))
    assert listed == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_the_page_of_records_lists_the_recorded_variables() -> None:
    page = (REPOSITORY / "docs" / "records.md").read_text("utf-8")
    _, _, after = page.partition("<!-- recorded variables -->\n```\n")
    assert after.partition("```")[0].split() == list(VARIABLES)
