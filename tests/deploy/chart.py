"""Renders deploy/helm/weir with Helm's own packages, which Go fetches and builds (the first time, for minutes)."""

from __future__ import annotations

import atexit
import functools
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.files import DEPLOY
from tests.deploy.manifests import Manifest

HELM = DEPLOY / "helm"
NAMESPACE = "prod"
_RENDERER = Path(__file__).parent / "helm"
_BUILD_SECONDS = 900


class ChartError(Exception):
    """Helm refuses the chart or the values; the text is what it says."""


def charted(values: str, minor: int = 36, **more: Any) -> list[Manifest]:
    """What `helm template --namespace prod --values deploy/helm/values/VALUES.yaml` makes, with `more` values."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(more, file)
        file.flush()
        paths = [str(HELM / "values" / f"{values}.yaml")] if values else []
        command = [_renderer(), str(HELM / "weir"), NAMESPACE, str(minor), *paths, file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChartError(done.stderr)
    return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]


@functools.cache
def missing() -> str | None:
    """Return why the chart cannot be rendered here; None where it can."""
    if shutil.which("go") is None:
        return "go is not installed: Helm's packages render the chart"
    try:
        _renderer()
    except subprocess.CalledProcessError as error:
        if (failed := re.search("dial tcp.*|no such host|i/o timeout", error.stderr)) is None:
            raise AssertionError(error.stderr) from error
        return f"Helm's packages cannot be fetched: {failed[0]}"
    except subprocess.TimeoutExpired:
        return f"Helm's packages are not built within {_BUILD_SECONDS} s"
    return None


@functools.cache
def _renderer() -> str:
    folder = tempfile.mkdtemp(prefix="weir-helm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = Path(folder, "render")
    command = ["go", "build", "-o", str(program), "."]
    subprocess.run(command, cwd=_RENDERER, capture_output=True, text=True, check=True, timeout=_BUILD_SECONDS)
    return str(program)
