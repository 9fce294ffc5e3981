# SPDX-License-Identifier: Apache-2.0
"""Runs a sidecar as a process: its event loop, its signals, its limits and its exit status."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from weir.proxy.capture.requirements import CaptureError, advice_for_root, keep_only_net_admin
from weir.proxy.collector import Collector, resident_bytes
from weir.proxy.config.load import load_config
from weir.proxy.config.reader import ConfigError
from weir.proxy.config.tables import Config
from weir.proxy.event_loop import new_event_loop, raise_descriptor_limit
from weir.proxy.hand_over import IN_PATH_SECONDS, READY_SECONDS, NewProcess, OldProcess, close_all, own_command
from weir.proxy.listeners import ListenError
from weir.proxy.log import EventLog, configure_logging, innermost_frame
from weir.proxy.open_files import open_files
from weir.proxy.sidecar import Sidecar
from weir.proxy.watchdog import Watchdog

__all__ = ["CaptureError", "ListenError", "run_sidecar"]


def run_sidecar(config: Config, path: Path | None, version: str) -> int:
    """Serve `config` until SIGTERM or SIGINT, then drain. Returns the exit status.

    It is 0 if the sidecar drained, or closed what was left at the end of its time; 1 if a second signal cut that short.
    SIGHUP loads `path` again, if there is one; SIGUSR2 hands over to a new process, and is 0 if that one serves.
    Raises ListenError when an address cannot be listened on, and CaptureError when connections cannot be captured. A
    sidecar that captures keeps no capability but CAP_NET_ADMIN.
    """
    kept = keep_only_net_admin() if config.capture is not None else None  # before the log's thread is started
    configure_logging(as_json=config.log.json, level=config.log.level)
    if kept is not None:
        EventLog().warning("capabilities_kept", reason=kept, effect="this process may do more than it needs")
    descriptors = raise_descriptor_limit()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(config, path, version, descriptors))


async def _serve(config: Config, path: Path | None, version: str, descriptors: int) -> int:
    end, again, hang_up, hand_over = (asyncio.Event() for _ in range(4))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (again if end.is_set() else end).set())
    loop.add_signal_handler(signal.SIGHUP, hang_up.set)
    loop.add_signal_handler(signal.SIGUSR2, hand_over.set)
    sidecar = Sidecar(config, version, descriptors=descriptors)
    collector = Collector(lambda: not sidecar.connections, resident_bytes)
    watchdog = Watchdog(sidecar.log, kills=config.capture is not None)
    tasks: list[asyncio.Task[object]] = []
    old = OldProcess.of_this_process()
    try:
        if old is None:
            await sidecar.start()
        elif not await _taken_over(sidecar, old, tasks):
            return 1
        watchdog.start()
        if (advice := advice_for_root(os.geteuid(), captures=config.capture is not None)) is not None:
            sidecar.log.warning("running_as_root", advice=advice)
        for setting, reason in open_files(config, sidecar.shown.key_watch.all_keys):
            sidecar.log.warning("file_is_open", setting=setting, reason=reason)
        tasks.append(asyncio.create_task(_reload_when_asked(sidecar, path, hang_up)))
        collector.start()
        handing = asyncio.create_task(_handed_over_when_asked(sidecar, watchdog, hand_over))
        ending = asyncio.create_task(end.wait())
        tasks += [handing, ending]
        await asyncio.wait({handing, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not end.is_set():
            handing.result()
            return 0
        handing.cancel()
        watchdog.stopping()
        drained = await _drained(sidecar, again)
        sidecar.log.info("stopped", drained=drained)
        return 0 if drained else 1
    finally:
        collector.stop()
        for task in tasks:
            task.cancel()
        if old is not None:
            old.close()
        await sidecar.close()
        watchdog.close()


async def _taken_over(sidecar: Sidecar, old: OldProcess, tasks: list[asyncio.Task[object]]) -> bool:
    """Start with what another process gives. Returns whether it has given something."""
    await sidecar.prepare()
    received = await old.begin()
    if received is None:
        sidecar.log.error("nothing_taken_over", reason="the process that was to hand over has ended")
        return False
    try:
        await sidecar.start(received)
    except ConfigError as error:  # a setting of HTTP that this version does not know
        sidecar.log.error("nothing_taken_over", reason=error)
        return False
    close_all(received.sockets)
    old.took()

    async def say_when_it_serves() -> None:
        await old.wait()
        if sidecar.capture is not None:
            await sidecar.capture.wait_until_in(IN_PATH_SECONDS)
        sidecar.log.info("taken_over", connections=sidecar.connections, pid=os.getpid())
        old.serves()

    tasks.append(asyncio.create_task(say_when_it_serves()))
    return True


async def _handed_over_when_asked(sidecar: Sidecar, watchdog: Watchdog, asked: asyncio.Event) -> None:
    """Hand over to a new process when that is asked for, until one serves."""
    while True:
        await asked.wait()
        asked.clear()
        effect = "this process goes on as it was"
        if os.getpid() == 1:
            reason = "it is the first process of its container, which would end with it"
            sidecar.log.warning("not_handed_over", reason=reason, effect=effect)
            continue
        try:
            new = NewProcess(own_command())
        except OSError as error:
            sidecar.log.error("not_handed_over", reason=str(error), effect=effect)
            continue
        try:
            if not await new.has_reached("ready", READY_SECONDS):
                sidecar.log.error("not_handed_over", reason="the new process does not begin: see above", effect=effect)
            elif not await sidecar.hand_over(new):
                effect = "this process goes on; connections that it had given break, and are made anew"
                sidecar.log.error(
                    "not_handed_over", reason="the new process has ended or does not serve", effect=effect
                )
            else:
                watchdog.handed_over(new.pid)
                sidecar.log.info("handed_over", serves=True, to=new.pid)
                return
        except Exception as error:  # noqa: BLE001 - a bug here may not end a sidecar that serves
            sidecar.log.error("not_handed_over", reason=repr(error), at=innermost_frame(error), effect=effect)
        finally:
            new.close()


async def _drained(sidecar: Sidecar, cut_short: asyncio.Event) -> bool:
    draining = asyncio.create_task(sidecar.drain())
    waiting = asyncio.create_task(cut_short.wait())
    done, unfinished = await asyncio.wait({draining, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in unfinished:
        task.cancel()
    return draining in done


async def _reload_when_asked(sidecar: Sidecar, path: Path | None, asked: asyncio.Event) -> None:
    while True:
        await asked.wait()
        asked.clear()
        if sidecar.shown.state == "handing over":
            sidecar.reload_refused(
                ConfigError("file", "is not read while a new process, which has read it, takes over")
            )
            continue
        if path is None:
            sidecar.log.warning("nothing_to_reload", reason="this sidecar was started without a file")
            continue
        try:
            # in a thread, as a disk or the resolution of a host name may be slow
            sidecar.reload(await asyncio.to_thread(load_config, path, lambda *_: sidecar.config.broker_id))
        except Exception as error:  # noqa: BLE001 - a bug that one file meets may not end all later reloads
            sidecar.reload_refused(error)
