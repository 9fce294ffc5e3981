# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from weir.lab.errors import JavaMissing
from weir.lab.java import find_java, java_command, java_version


@pytest.fixture(autouse=True)
def forget_java() -> None:
    find_java.cache_clear()


def fake_java(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("sh: not found", None),
    ],
)
def test_java_version_is_the_feature_release(said: str, version: int | None) -> None:
    assert java_version(said) == version


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = fake_java(tmp_path / "home" / "bin", "17.0.1")
    fake_java(tmp_path / "path", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    assert find_java() == named


def test_java_missing_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"no java on PATH.*: install it"):
        find_java()


def test_old_java_is_refused_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "1.8.0_402")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(JavaMissing, match="only Java 8 was found") as refused:
        find_java()
    assert (refused.value.needed, refused.value.found) == (17, "8")


def test_java_command_has_settings_then_class_then_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "bin", "17.0.1").parent.parent))
    command = java_command([Path("a.jar"), Path("b.jar")], "kafka.Kafka", ["x"], heap_mb=99, properties={"k": "v"})
    assert command[0] == str(tmp_path / "bin" / "java")
    assert {"-Xmx99m", "-Dk=v"} <= set(command[: command.index("-cp")])
    assert command[command.index("-cp") :] == ["-cp", "a.jar:b.jar", "kafka.Kafka", "x"]
