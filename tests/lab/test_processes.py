# SPDX-License-Identifier: Apache-2.0
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.programs import python
from weir.lab.errors import PortTaken, ProcessFailed, Timeout
from weir.lab.processes import Process, Supervisor, tail


@pytest.fixture
def shown() -> list[str]:
    return []


@pytest.fixture
def supervisor(shown: list[str], own_temporary_folder: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(shown.append)
    yield supervisor
    supervisor.end()


def shell(supervisor: Supervisor, script: str, name: str = "worker") -> Process:
    process = Process(supervisor, name, ["/bin/sh", "-c", script], supervisor.log(name))
    process.start()
    return process


def gone(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


def test_process_that_says_it_is_up_is_up(supervisor: Supervisor) -> None:
    process = shell(supervisor, "echo 'server started'; exec sleep 60")
    process.wait_for_line(r"server \w+ted", seconds=30)
    assert process.alive


def test_line_of_an_earlier_run_does_not_count(supervisor: Supervisor) -> None:
    """A restarted broker appends to the same log: what the first one said there is not the second one's word."""
    process = shell(supervisor, "echo started; exit 3")
    process.wait_for_line("started", seconds=30)
    process.wait(30)
    process.command = ["/bin/sh", "-c", "exit 4"]
    process.start()
    with pytest.raises(ProcessFailed, match="ended with status 4 before it was up"):
        process.wait_for_line("started", seconds=30)


def test_process_that_ends_early_is_told_with_its_logs_end(supervisor: Supervisor) -> None:
    process = shell(supervisor, "echo 'no such property'; exit 7")
    with pytest.raises(ProcessFailed, match=r"worker: ended with status 7") as failed:
        process.wait_for_line("started", seconds=30)
    assert failed.value.tail == "no such property"
    assert failed.value.log == process.log


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:28867: Address", 28867),
        ("java.net.BindException: Address already in use", 0),
        ("[Errno 98] error while attempting to bind on address ('127.0.1.2', 20001): address already in use", 20001),
    ],
)
def test_port_taken_is_told_apart_from_other_ends(supervisor: Supervisor, line: str, port: int) -> None:
    process = shell(supervisor, f'echo "{line}"; exit 1')
    with pytest.raises(PortTaken) as taken:
        process.wait_for_line("started", seconds=30)
    assert taken.value.port == port


def test_process_that_never_says_it_is_up_times_out(supervisor: Supervisor) -> None:
    process = shell(supervisor, "exec sleep 60")
    with pytest.raises(Timeout, match="the start of worker did not happen within 0 s"):
        process.wait_for_line("started", seconds=0)


def test_stop_asks_first_and_kill_does_not(supervisor: Supervisor) -> None:
    polite = shell(supervisor, "trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done", "polite")
    polite.wait_for_line("up", seconds=30)
    assert polite.stop() == 5
    deaf = shell(supervisor, "trap '' TERM; echo up; while :; do sleep 0.01; done", "deaf")
    deaf.wait_for_line("up", seconds=30)
    assert deaf.stop(seconds=0) == -signal.SIGKILL


def ended(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet waited for by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_end_kills_whole_groups_and_removes_the_folder(supervisor: Supervisor, shown: list[str]) -> None:
    process = shell(supervisor, "sleep 60 & echo child $!; wait")
    process.wait_for_line(r"child \d+", seconds=30)
    child = int(process.output().split()[1])
    supervisor.end()
    assert gone(process.pid)
    deadline = time.monotonic() + 10  # the kernel takes a moment to end what was killed
    while not ended(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended(child)
    assert not supervisor.folder.exists()
    assert shown == []


def test_end_after_a_failure_keeps_the_logs_and_shows_why(supervisor: Supervisor, shown: list[str]) -> None:
    (supervisor.folder / "broker-1").mkdir()
    shell(supervisor, "echo 'disk full'; exit 9").wait(30)
    shell(supervisor, "exit 0", "tool").wait(30)
    shell(supervisor, "exec sleep 60", "broker")
    supervisor.end(AssertionError("rate was wrong"))
    assert [entry.name for entry in supervisor.folder.iterdir()] == ["logs"]
    text = "\n".join(shown)
    assert "rate was wrong" in text
    assert str(supervisor.folder / "logs") in text
    assert "worker had ended with status 9; its log ends:\ndisk full" in text
    assert "tool had" not in text
    assert "broker had" not in text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), None])
def test_end_by_the_person_leaves_nothing(
    supervisor: Supervisor, shown: list[str], error: BaseException | None
) -> None:
    shell(supervisor, "exit 1").wait(30)
    supervisor.end(error)
    assert not supervisor.folder.exists()
    assert shown == []


def test_reaper_ends_everything_when_the_program_is_killed(tmp_path: Path) -> None:
    """A program that is killed cannot clean up: its brokers and their data must not stay."""
    program = (
        "import sys; from weir.lab.processes import Process, Supervisor\n"
        "lab = Supervisor(print)\n"
        "worker = Process(lab, 'worker', ['/bin/sleep', '60'], lab.log('worker'))\n"
        "worker.start()\n"
        "print(worker.pid, lab._reaper.pid, lab.folder, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with python(tmp_path, "-c", program) as killed:
        assert killed.stdout is not None
        worker, reaper, folder = killed.stdout.readline().split()
        handles = [os.pidfd_open(int(process_id)) for process_id in (worker, reaper)]
        killed.kill()
    try:
        assert all(select.select([handle], [], [], 30)[0] for handle in handles), "still running"
    finally:
        for handle in handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
    assert not Path(folder).exists()


def test_tail_is_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert tail(log, lines=2) == "line 99998\nline 99999"
    assert tail(tmp_path / "none.log") == ""
