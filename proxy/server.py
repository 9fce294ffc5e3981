"""Runs a sidecar as a process: its event loop, its signals, its limits and its exit status."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from weir.proxy.capture.privileges import advice_for_root, keep_only_net_admin
from weir.proxy.capture.requirements import CaptureError
from weir.proxy.collector import Collector, resident_bytes
from weir.proxy.config.load import load_config
from weir.proxy.config.tables import Config
from weir.proxy.event_loop import new_event_loop, raise_descriptor_limit
from weir.proxy.listeners import ListenError
from weir.proxy.log import EventLog, configure_logging
from weir.proxy.sidecar import Sidecar
from weir.proxy.watchdog import Watchdog

__all__ = ["CaptureError", "ListenError", "run_sidecar"]


def run_sidecar(config: Config, path: Path | None, version: str) -> int:
    """Serve `config` until SIGTERM or SIGINT, then drain. Returns the exit status.

    It is 0 if the sidecar drained, or closed what was left at the end of its time; 1 if a second signal cut that short.
    SIGHUP loads `path` again, if there is one. Raises ListenError when an address cannot be listened on, and
    CaptureError when connections cannot be captured. A sidecar that captures keeps no capability but CAP_NET_ADMIN.
    """
    kept = keep_only_net_admin() if config.capture is not None else None  # before the log's thread is started
    configure_logging(as_json=config.log.json, level=config.log.level)
    if kept is not None:
        EventLog().warning("capabilities_kept", reason=kept, effect="this process may do more than it needs")
    descriptors = raise_descriptor_limit()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(config, path, version, descriptors))


async def _serve(config: Config, path: Path | None, version: str, descriptors: int) -> int:
    end, again, hang_up = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (again if end.is_set() else end).set())
    loop.add_signal_handler(signal.SIGHUP, hang_up.set)
    sidecar = Sidecar(config, version, descriptors=descriptors)
    collector = Collector(lambda: not sidecar.connections, resident_bytes)
    watchdog = Watchdog(sidecar.log, kills=config.capture is not None)
    reloading: asyncio.Task[None] | None = None
    try:
        await sidecar.start()
        watchdog.start()
        if (advice := advice_for_root(os.geteuid(), captures=config.capture is not None)) is not None:
            sidecar.log.warning("running_as_root", advice=advice)
        reloading = asyncio.create_task(_reload_when_asked(sidecar, path, hang_up))
        collector.start()
        await end.wait()
        watchdog.stopping()
        drained = await _drained(sidecar, again)
        sidecar.log.info("stopped", drained=drained)
        return 0 if drained else 1
    finally:
        collector.stop()
        if reloading is not None:
            reloading.cancel()
        await sidecar.close()
        watchdog.close()


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
        if path is None:
            sidecar.log.warning("nothing_to_reload", reason="this sidecar was started without a file")
            continue
        try:
            # in a thread, as a disk or the resolution of a host name may be slow
            sidecar.reload(await asyncio.to_thread(load_config, path, lambda *_: sidecar.config.broker_id))
        except Exception as error:  # noqa: BLE001 - a bug that one file meets may not end all later reloads
            sidecar.reload_refused(error)
