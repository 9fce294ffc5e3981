# SPDX-License-Identifier: Apache-2.0
import hashlib
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from weir.lab import jars
from weir.lab.connect import VERSION
from weir.lab.errors import JarsMissing
from weir.lab.jars import Jar, ensure, read_manifest, wrong_jars
from weir.lab.modes import MODES

CONTENT = {"org/a/one/1.0/one-1.0.jar": b"first", "org/b.c/two_2.13/2.0/two_2.13-2.0.jar": b"second"}
LIST = [Jar(path, hashlib.sha256(content).hexdigest()) for path, content in CONTENT.items()]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces the manifest and the package clients; returns what was fetched, call by call."""
    fetched: list[list[str]] = []

    def fetch(version: str, wanted: list[Jar], folder: Path, tell: Callable[[str], None]) -> None:
        fetched.append([jar.path for jar in wanted])
        for jar in wanted:
            (folder / jar.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / jar.path).write_bytes(CONTENT[jar.path])

    monkeypatch.setattr(jars, "read_manifest", lambda version: LIST)
    monkeypatch.setattr(jars, "fetch", fetch)
    return fetched


def silent(line: str) -> None:
    pass


@pytest.mark.parametrize("version", sorted({mode.kafka for mode in MODES.values()}))
def test_committed_manifest_names_kafka_of_that_version(version: str) -> None:
    listed = read_manifest(version)
    assert ("org.apache.kafka", "kafka_2.13", version) in [jar.coordinates for jar in listed]
    assert len({jar.path for jar in listed}) == len(listed)


def test_connect_is_listed_and_shares_no_jar_with_its_kafka() -> None:
    connect, broker = read_manifest(f"connect-{VERSION}"), read_manifest(VERSION)
    assert ("org.apache.kafka", "connect-file", VERSION) in [jar.coordinates for jar in connect]
    assert not {jar.path for jar in connect} & {jar.path for jar in broker}


def test_hdfs_of_the_tests_is_of_the_hadoop_spark_comes_with() -> None:
    (server,) = read_manifest("hadoop-minicluster")
    client = f"hadoop-client-api-{server.coordinates[2]}.jar"
    assert (Path(pyspark.__file__).parent / "jars" / client).is_file()


def test_s3a_of_the_tests_is_of_the_hadoop_that_spark_comes_with() -> None:
    (connector,) = (jar for jar in read_manifest("spark-s3") if "hadoop-aws" in jar.path)
    client = f"hadoop-client-api-{connector.coordinates[2]}.jar"
    assert (Path(pyspark.__file__).parent / "jars" / client).is_file()


def test_connector_of_tests_is_for_the_scala_spark_comes_with() -> None:
    (connector,) = (jar for jar in read_manifest("spark-kafka") if "spark-sql-kafka" in jar.path)
    scala = connector.coordinates[1].rpartition("_")[2]
    assert list((Path(pyspark.__file__).parent / "jars").glob(f"spark-sql_{scala}-*.jar"))


def test_ivy_is_found_in_spark() -> None:
    ivy = jars.ivy_jar()
    assert ivy is not None
    assert ivy.is_file()


def test_unknown_version_names_the_known_ones() -> None:
    with pytest.raises(JarsMissing, match=r"the lab knows 3\.9\.\d, 4\.0\.\d, 4\.1\.[\d., ]*$"):
        read_manifest("9.9.9")


@pytest.mark.parametrize("line", ["abc  org/a/one/1.0/one-1.0.jar", f"{'0' * 64}  ../../one-1.0.jar", f"{'0' * 64}"])
def test_line_that_is_no_jar_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "jars-1.sha256").write_text(f"{'0' * 64}  org/a/one/1.0/one-1.0.jar\n{line}\n")
    with pytest.raises(JarsMissing, match="line 2 of"):
        read_manifest("1", tmp_path)


def test_missing_jars_are_fetched_once(tmp_path: Path, registry: list[list[str]]) -> None:
    first = ensure("1", cache=tmp_path, report=silent)
    second = ensure("1", cache=tmp_path, report=silent)
    assert first == second == [tmp_path / "jars" / path for path in CONTENT]
    assert registry == [list(CONTENT)]


def test_only_the_jar_that_is_missing_is_fetched(tmp_path: Path, registry: list[list[str]]) -> None:
    paths = ensure("1", cache=tmp_path, report=silent)
    paths[1].unlink()
    ensure("1", cache=tmp_path, report=silent)
    assert registry[1:] == [[LIST[1].path]]


def test_jar_with_other_bytes_is_refused(
    tmp_path: Path, registry: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONTENT, LIST[0].path, b"tampered")
    with pytest.raises(JarsMissing, match=r"1 jar\(s\) are not what") as refused:
        ensure("1", cache=tmp_path, report=silent)
    assert refused.value.jars == [LIST[0].path]
    assert not (tmp_path / "jars" / "1.checked").exists()


def test_changed_manifest_is_checked_again(
    tmp_path: Path, registry: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure("1", cache=tmp_path, report=silent)
    monkeypatch.setattr(jars, "read_manifest", lambda version: [Jar(LIST[0].path, "0" * 64)])
    with pytest.raises(JarsMissing):
        ensure("1", cache=tmp_path, report=silent)


def test_wrong_jars_are_the_missing_and_the_different(tmp_path: Path) -> None:
    file = tmp_path / LIST[0].path
    file.parent.mkdir(parents=True)
    file.write_bytes(b"other")
    assert wrong_jars(LIST, tmp_path) == LIST
    file.write_bytes(b"first")
    assert wrong_jars(LIST, tmp_path) == LIST[1:]


def test_without_any_package_client_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(jars, "ivy_jar", lambda: None)
    with pytest.raises(JarsMissing, match=r"neither Maven nor PySpark.*kafka-weir.demo"):
        jars.fetch("1", LIST, tmp_path / "jars", silent)


@pytest.mark.parametrize("client", ["mvn", "java"])
def test_unreachable_registry_is_told_in_the_clients_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    tool = tmp_path / "bin" / client
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'Could not transfer artifact'\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(tool) if name == client else None)
    monkeypatch.setattr(jars, "find_java", lambda: tool)
    monkeypatch.setattr(jars, "ivy_jar", lambda: Path("ivy.jar") if client == "java" else None)
    said: list[str] = []
    with pytest.raises(JarsMissing, match=r"(?s)could not be fetched with (Maven|Ivy).*Could not transfer artifact"):
        jars.fetch("1", LIST, tmp_path / "jars", said.append)
    assert said == [f"Kafka 1: fetching with {'Maven' if client == 'mvn' else 'Ivy'}: 2 jars"]


def test_cache_is_in_the_checkout_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_CACHE", raising=False)
    assert jars.project_cache() == Path(jars.__file__).resolve().parent.parent / ".cache"
    monkeypatch.setenv("WEIR_CACHE", str(tmp_path))
    assert jars.project_cache() == tmp_path


def test_files_are_kept_whole_and_by_the_first(tmp_path: Path) -> None:
    """A cluster that begins meanwhile finds all of them, or no folder."""
    made, kept = tmp_path / "made", tmp_path / "kept"
    (made / "log").mkdir(parents=True)
    (made / "log" / "0.checkpoint").write_text("first")
    (made / "meta.properties").write_text("whose it is")

    jars.keep(made, "*.checkpoint", kept)
    (made / "log" / "0.checkpoint").write_text("second")
    jars.keep(made, "*.checkpoint", kept)

    assert [str(file.relative_to(kept)) for file in kept.rglob("*") if file.is_file()] == ["log/0.checkpoint"]
    assert (kept / "log" / "0.checkpoint").read_text() == "first"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kept", "made"]
