"""The image has every package of the project: one that is missing shows only when a container starts."""

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_image_has_every_package() -> None:
    packages = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    lines = (PROJECT / "Dockerfile").read_text().splitlines()
    missing = {name.partition(".")[0] for name in packages} - {line.split()[1] for line in lines if line[:5] == "COPY "}
    assert not missing
