"""The migration of a program: all its files together, as handlers of errors may be in other files than the retries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from abate.migrate import (
    backoff_decorators,
    retry_errors,
    retrying_decorators,
    stamina_sites,
    tenacity_sites,
    urllib3_retries,
)
from abate.migrate.edits import Edit, edited
from abate.migrate.facts import Facts
from abate.migrate.files import SourceFile
from abate.migrate.imports import with_imports
from abate.migrate.plan import NotMapped
from abate.migrate.sites import Site
from abate.migrate.source import Source

PEERS = {
    "tenacity": tenacity_sites.find,
    "backoff": backoff_decorators.find,
    "stamina": stamina_sites.find,
    "retrying": retrying_decorators.find,
    "urllib3": urllib3_retries.find,
}
"""The libraries that are migrated from, and how their places are found."""
POKED = re.compile(r"\b(\w+)\s*\.\s*(?:retry_with\b|statistics\b|retry\b(?!\s*\())")
IMPORTED = re.compile(r"^[ \t]*from\s+([.\w]+)\s+import\s+(\([^)]*\)|[^\n]+)", re.MULTILINE)
IMPORTING = {peer: re.compile(rf"(?:^|[;:])[ \t]*(?:from|import)\b[^\n]*\b{peer}\b", re.MULTILINE) for peer in PEERS}
MAX_ROUNDS = 4
"""How often a program is migrated again, for sites inside of sites."""


@dataclass
class FileResult:
    """One file after the migration.

    `handlers` are the lines that handled the error of a library and handle abate's now; `left` is where the new text
    still uses the libraries.
    """

    file: SourceFile
    after: str
    sites: list[Site] = field(default_factory=list)
    handlers: list[int] = field(default_factory=list)
    left: list[tuple[int, str]] = field(default_factory=list)

    def take(self, found: Rewritten) -> None:
        """Take another round's sites in the place of those that were left; lines are those of the first round."""
        left = [site for site in self.sites if not site.mapped]
        if len(left) == len(found.sites):
            for old, new in zip(left, found.sites, strict=True):
                new.line, new.title = old.line, old.title
        self.sites = sorted((*(site for site in self.sites if site.mapped), *found.sites), key=lambda site: site.line)
        self.handlers += found.handlers
        self.left = found.left
        self.after = found.text

    @property
    def changed(self) -> bool:
        """Whether the file is rewritten."""
        return self.after != self.file.text


@dataclass
class Rewritten:
    """What one round made of a file."""

    text: str
    sites: list[Site]
    handlers: list[int]
    left: list[tuple[int, str]]


def migrate(files: Sequence[SourceFile], peers: Sequence[str]) -> list[FileResult]:
    """Migrate files from these libraries, and write nothing; files without such a library are not in the result."""
    results = {file.path: FileResult(file, file.text) for file in files}
    sources: dict[str, Source] = {}
    for _ in range(MAX_ROUNDS):
        texts = {path: result.after for path, result in results.items()}
        parsed = {text: sources.get(text) or parse(text) for text in texts.values() if mentions(text, peers)}
        sources = {text: source for text, source in parsed.items() if source is not None}
        for result in results.values():
            if not result.sites and result.after not in sources and mentions(result.after, peers):
                result.sites = [Site("libcst", 1, "the whole file", reason="libcst can't parse it")]
        for path, found in _Round(texts, sources, peers).run().items():
            results[path].take(found)
        if all(result.after == texts[path] for path, result in results.items()):
            break
    return [result for result in results.values() if result.sites or result.handlers or result.left]


def parse(text: str) -> Source | None:
    """Return a parsed file; None if libcst does not know its syntax, or it is nested too deep."""
    try:
        source = Source(text)
        source.scopes  # noqa: B018  (visits the whole tree)
    except (cst.ParserSyntaxError, RecursionError):
        return None
    return source


def mentions(text: str, peers: Sequence[str]) -> bool:
    """Return whether a file may use one of these libraries: a look at its imports, as parsing takes long."""
    return any(_may_use_retry(text) if peer == "urllib3" else IMPORTING[peer].search(text) for peer in peers)


def _may_use_retry(text: str) -> bool:
    return "Retry" in text and ("urllib3" in text or "HTTPAdapter" in text)


class _Round:
    """One pass over all files."""

    def __init__(self, texts: dict[Path, str], sources: dict[str, Source], peers: Sequence[str]) -> None:
        self.texts = texts
        self.peers = peers
        self.sources = {path: sources[text] for path, text in texts.items() if text in sources}
        self.facts = self._facts()

    def _facts(self) -> Facts:
        poked: set[str] = set()
        imported: set[tuple[str, str]] = set()
        for text in self.texts.values():
            poked.update(POKED.findall(text))
            for module, names in IMPORTED.findall(text):
                imported |= {(module.rpartition(".")[2], name) for name in re.findall(r"\w+", names)}
        try_again, switches = (
            self._place("tenacity", "tenacity.TryAgain"),
            self._place("stamina", *stamina_sites.SWITCHES),
        )
        return Facts(frozenset(poked), try_again, switches, frozenset(imported))

    def _place(self, package: str, *names: str) -> str:
        """Return where one of these names is used first, or an empty string."""
        for path, source in self.sources.items():
            for node in source.references(package):
                if source.imported(node) in names:
                    return f"{source.code(node)} ({path.name}:{source.line(node)})"
        return ""

    def run(self) -> dict[Path, Rewritten]:
        """Return what becomes of each file."""
        found = {path: self._sites(source, self.facts) for path, source in self.sources.items()}
        handlers: dict[Path, list[Edit]] = {}
        while True:
            mapped = self._mapped(found)
            for path, sites in found.items():
                self._check_callbacks(path, sites)
            handlers = self._handlers(found)
            if self._mapped(found) == mapped:
                break
        return {path: self._file(path, found[path], handlers.get(path, [])) for path in self.sources}

    def _sites(self, source: Source, facts: Facts) -> list[Site]:
        sites = [site for peer in self.peers for site in PEERS[peer](source, facts)]
        for peer in self.peers:
            line = source.star_import(peer)
            if line is not None:
                sites.append(
                    Site(peer, line, f"from {peer} import *", reason="what a star import binds can't be followed")
                )
        return sites

    def _mapped(self, found: dict[Path, list[Site]]) -> int:
        return sum(site.mapped for sites in found.values() for site in sites)

    def _check_callbacks(self, path: Path, sites: list[Site]) -> None:
        """Leave sites whose callback is used by something that stays as it is."""
        source = self.sources[path]
        changed = True
        while changed:
            changed = False
            gone = [old for site in sites if site.mapped for old, _ in site.edits]
            for site in sites:
                for name, uses in site.callbacks.items() if site.mapped else ():
                    kept = [use for use in uses if not any(source.is_inside(use, old) for old in gone)]
                    if kept:
                        site.reason = f"{name} is also used on line {source.line(kept[0])}, which stays as it is"
                    elif name in self._used_elsewhere(path):
                        site.reason = f"{name} is also used in another file"
                    changed = changed or not site.mapped

    def _check_passed_on(self, error: str) -> None:
        """Raise an error if files take an error's class from a file of the program that imports it."""
        for path, source in self.sources.items():
            for name in source.names_of(error) & self._used_elsewhere(path):
                raise NotMapped(f"other files take {name} from {path.name}")

    def _handlers(self, found: dict[Path, list[Site]]) -> dict[Path, list[Edit]]:
        """Return the edits of handlers. If one can't be mapped, leave the sites whose error it may handle."""
        edits: dict[Path, list[Edit]] = {}
        for error, package in ((tenacity_sites.RETRY_ERROR, "tenacity"),):
            raising = [site for sites in found.values() for site in sites if site.raises == error and site.mapped]
            if not raising:
                continue
            shared = any(not site.mapped and site.raises == error for sites in found.values() for site in sites)
            for path, source in self.sources.items():
                try:
                    self._check_passed_on(error)
                    edits.setdefault(path, []).extend(retry_errors.handler_edits(source, package, error, shared))
                except NotMapped as problem:
                    edits.clear()
                    for site in raising:
                        site.reason = f"it raises {error}, and {path.name} handles that: {problem}"
                    break
        return edits

    def _file(self, path: Path, sites: list[Site], handlers: list[Edit]) -> Rewritten:
        source, old = self.sources[path], self.texts[path]
        edits = [*handlers, *(edit for site in sites if site.mapped for edit in site.edits)]
        if not edits:
            return Rewritten(old, sites, [], _left(source, self.peers, sites))
        module = edited(source.module, edits)
        assert isinstance(module, cst.Module)
        needed = {"abate"}.union(*(site.plan.modules for site in sites if site.mapped))
        packages = {site.peer for site in sites if site.mapped} or {"tenacity"}
        if "urllib3" in packages:
            packages.add("requests")
        text = with_imports(source, Source(module.code), packages, needed, self._used_elsewhere(path))
        try:
            compile(text, str(path), "exec", dont_inherit=True, flags=ast.PyCF_ONLY_AST)
        except SyntaxError as error:
            for site in sites:
                site.reason = site.reason or f"the rewritten file would not compile: {error.msg}"
            return Rewritten(old, sites, [], _left(source, self.peers, sites))
        lines = sorted(
            {source.line(node) for node, _ in handlers if isinstance(node, (cst.Name, cst.Tuple, cst.Attribute))}
        )
        return Rewritten(text, sites, lines, _left(Source(text), self.peers, sites))

    def _used_elsewhere(self, path: Path) -> set[str]:
        """Return names that other files may take from a file."""
        stem = path.parent.name if path.stem == "__init__" else path.stem
        kept = {name for module, name in self.facts.imported_names if module in (stem, "")}
        for text in self.texts.values():
            if f"{stem}." in text:
                kept.update(re.findall(rf"\b{re.escape(stem)}\.(\w+)", text))
        return kept


def _left(source: Source, peers: Sequence[str], sites: Iterable[Site]) -> list[tuple[int, str]]:
    """Return where a file still uses the libraries, apart from the sites that were left."""
    lines = {site.line for site in sites if not site.mapped}
    found = [
        (source.line(node), source.code(node))
        for peer in peers
        if peer != "urllib3"
        for node in source.references(peer)
    ]
    return [(line, code) for line, code in found if line not in lines]
