"""What the support matrix has cells for: evidence/matrix.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field
from packaging.version import Version

from patchqueue.files import record
from patchqueue.outcome import Problem, Refused

from .results import FOLDER

FILE = FOLDER / "matrix.toml"
ALWAYS = "0"  # "upstream" of what every pinned release has


class Graph(Struct, frozen=True, forbid_unknown_fields=True):
    """A mode of tests/gpu, and what is so for every family of models in it."""

    brings: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    never: dict[str, str] = field(default_factory=dict)
    upstream: str = ""


class Family(Struct, frozen=True, forbid_unknown_fields=True):
    """A column of a table. since: by model, the first release that knows it. repairs: by graph, or
    for "all"; never: by graph, too, beside what its graph says. question: instead of graphs, the
    script of tests/gpu whose answers the column shows: one engine's against its own, asked
    otherwise; with --without queue a control: the release's own tree must answer otherwise."""

    models: Annotated[tuple[str, ...], Meta(min_length=1)]
    question: str = ""
    since: dict[str, str] = field(default_factory=dict)
    brings: tuple[str, ...] = ()
    repairs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    never: dict[str, dict[str, str]] = field(default_factory=dict)
    upstream: str = ""


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    families: dict[str, Family]
    graphs: tuple[str, ...] = ()


class Feature(Graph, frozen=True, kw_only=True):
    """One graph of one family of models, with what the file says of both. since: as the family's;
    asked: whether a script asks it, whose name `mode` is then."""

    models: tuple[str, ...]
    mode: str
    asked: bool = False
    since: dict[str, str] = field(default_factory=dict)

    def known(self, version: Version) -> tuple[str, ...]:
        """The models that a release knows."""
        return tuple(one for one in self.models if version >= Version(self.since.get(one, ALWAYS)))


class Cells(Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    graphs: dict[str, Graph] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()

    def of(self, table: Table) -> dict[str, tuple[Feature, ...]]:
        """A table's columns: of each family its graphs."""
        return {
            name: tuple(self._feature(family, mode) for mode in table.graphs or [family.question])
            for name, family in table.families.items()
        }

    def _feature(self, family: Family, mode: str) -> Feature:
        graph, own, never = self.graphs.get(mode, Graph()), family.repairs, family.never
        return Feature(
            models=family.models,
            mode=mode,
            asked=bool(family.question),
            brings=(*family.brings, *graph.brings),
            repairs=(*own.get("all", ()), *own.get(mode, ()), *graph.repairs),
            never={**graph.never, **never.get("all", {}), **never.get(mode, {})},
            upstream=family.upstream or graph.upstream,
            since=family.since,
        )

    @property
    def features(self) -> tuple[Feature, ...]:
        """All of them, in the order of the tables and their columns."""
        columns = (column for table in self.tables for column in self.of(table).values())
        return tuple(one for column in columns for one in column)


def load(root: Path) -> Cells:
    """What the file says; nothing where there is none. Raises Refused naming what is wrong."""
    if not (root / FILE).is_file():
        return Cells()
    found = record.toml((root / FILE).read_bytes(), Cells, str(FILE), "bad-matrix")
    if wrong := _unknown(found):
        raise Refused(Problem("bad-matrix", str(FILE), wrong))
    return found


def _unknown(found: Cells) -> str:
    """The first graph or model that is named and is not there; empty where all are."""
    graphs = {name for table in found.tables for name in table.graphs}
    families = [one for table in found.tables for one in table.families.values()]
    graphs |= {name for one in families for name in (*one.repairs, *one.never)} - {"all"}
    for name in sorted(graphs - found.graphs.keys()):
        return f"has no [graphs.{name}]"
    for one in families:
        if others := sorted(one.since.keys() - set(one.models)):
            return f"has a family without {others[0]}, and says since when it is known"
    return ""
