# SPDX-License-Identifier: Apache-2.0
"""Renders deploy/helm/weir with Helm's packages, and applies its policy with Kubernetes' evaluator.

Go fetches and builds them, which takes minutes the first time.
"""

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
_PROGRAMS = Path(__file__).parent / "helm"
_BUILD_SECONDS = 900


class ChartError(Exception):
    """Helm refuses the chart or the values; the text is what it says."""


def charted(values: str, minor: int = 36, **more: Any) -> list[Manifest]:
    """What `helm template --namespace prod --values deploy/helm/values/VALUES.yaml` makes, with `more` values."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(more, file)
        file.flush()
        paths = [str(HELM / "values" / f"{values}.yaml")] if values else []
        command = [_built("."), str(HELM / "weir"), NAMESPACE, str(minor), *paths, file.name]
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
        _built(".")
    except subprocess.CalledProcessError as error:
        if (failed := re.search("dial tcp.*|no such host|i/o timeout", error.stderr)) is None:
            raise AssertionError(error.stderr) from error
        return f"Helm's packages cannot be fetched: {failed[0]}"
    except subprocess.TimeoutExpired:
        return f"Helm's packages are not built within {_BUILD_SECONDS} s"
    return None


def applied(policy: Manifest, *pods: Manifest) -> list[Manifest]:
    """The pods as an API server creates them under a MutatingAdmissionPolicy. ChartError where it is refused."""
    asked = json.dumps({"policy": policy, "pods": pods})
    done = subprocess.run([_built("./policy")], input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChartError(done.stderr)
    changed: list[Manifest] = json.loads(done.stdout)
    return changed


@functools.cache
def _built(package: str) -> str:
    folder = tempfile.mkdtemp(prefix="weir-helm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = str(Path(folder, "program"))
    command = ["go", "build", "-o", program, package]
    subprocess.run(command, cwd=_PROGRAMS, capture_output=True, text=True, check=True, timeout=_BUILD_SECONDS)
    return program
