"""Builds, for real, every stage of the standard Debian cells that needs no torch: by `make prove`.

Cells share most of them, so each different recipe is built once. Nothing is put into the engine's
store; what remains is build cache.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.command import ROOT

from gpucomm import bake, build, engine, render
from gpucomm import project as projects
from gpucomm.build import Options
from gpucomm.cell import Cell
from gpucomm.standard import cells_of

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

PROJECT = projects.load(start=ROOT)
# All but the layers of wheels and the image that they are copied into.
STAGES = ("system", "tool", "selftest", "runtime")


@dataclass(frozen=True)
class Recipe:
    """One way in which stages are made, the first cell that has it, and how many have."""

    text: str
    cell: Cell
    cells: int

    @property
    def name(self) -> str:
        return f"{self.cell.id}, {self.cells} cells"


def stages_of(dockerfile: str) -> dict[str, str]:
    """The text of every named stage."""
    parts = (part.split("\n", 1) for part in dockerfile.split("\nFROM ")[1:])
    return {head.split(" AS ")[1]: text for head, text in parts if " AS " in head}


def recipes() -> Iterator[Recipe]:
    """The different recipes among the standard cells whose base is bootstrapped."""
    found: dict[str, list[Cell]] = {}
    for cell in cells_of(PROJECT.matrix):
        if PROJECT.matrix.systems[cell.os].distribution != "debian":
            continue
        stages = stages_of((PROJECT.recipe(cell) / render.DOCKERFILE).read_text())
        # A comment belongs to what follows it.
        text = "\n".join(
            line
            for name in STAGES
            for line in [cell.os, *stages[name].splitlines()]
            if line and not line.startswith("#")
        )
        found.setdefault(text, []).append(cell)
    for text, cells in found.items():
        yield Recipe(text, cells[0], len(cells))


@pytest.mark.parametrize("recipe", list(recipes()), ids=lambda recipe: recipe.name)
def test_its_stages_build(recipe: Recipe, tmp_path: Path) -> None:
    if engine.probe() is None:
        pytest.skip("no engine answers")
    assert platform.machine() == "x86_64", "the bases are bootstrapped for the builder's platform"
    cell, options = recipe.cell, Options()
    base = build._base(PROJECT, cell, options, print)
    with build._secrets(PROJECT, cell, options).on_disk() as secrets:
        definition = bake.bake_file(
            cell, PROJECT.places, PROJECT.recipe(cell), base,
            epoch=PROJECT.matrix.source_date_epoch, name="unused", secrets=secrets, wheelhouse=None,
        )  # fmt: skip
        image = definition["target"].pop(bake.IMAGE_TARGET)
        for stage in STAGES:
            definition["target"][stage] = image | {"target": stage, "output": ["type=cacheonly"]}
        file = tmp_path / "bake.json"
        file.write_text(json.dumps(definition))
        done = subprocess.run(
            ["docker", "buildx", "bake", "--file", str(file), "--progress=plain",
             "--allow=fs.read=/", *STAGES],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
