# SPDX-License-Identifier: Apache-2.0
"""Real Kafka clusters on loopback, with a weir sidecar for each broker: for the demo, the tests and the benches.

`make setup` fetches Kafka's jars once (`weir.lab.prepare`). Only `cli` may use the lab, for its demo. Use:

    from weir.lab.modes import KraftCluster, ZooKeeperCluster
    from weir.lab.produce import fill
    from weir.lab.settings import Route

    throttle = {
        "leader.replication.throttled.rate": 5_000_000,
        "topics": {"orders": {"leader.replication.throttled.replicas": "*"}},
    }
    partitions = [("orders", 0), ("orders", 1)]
    with ZooKeeperCluster(inter_broker_protocol_version="0.10.1", sidecars=True) as cluster:  # Fetch v3
        cluster.create_topic("orders", {0: [1], 1: [1]})  # every replica on broker 1
        fill(cluster.bootstrap_servers, "orders", {0: 10_000_000, 1: 10_000_000})
        cluster.assert_no_native_throttle()  # by DescribeConfigs
        cluster.sidecars[1].put_throttle(throttle)
        with cluster.received_bytes(2, partitions) as received:  # before the move, so that its first second counts
            cluster.reassign({partition: [1, 2] for partition in partitions}, seconds=60)
        series = received.series()  # mean_rate(), worst_window() -> (bytes, start), per_second()
        cluster.sidecars[1].metrics().value("weir_replication_bytes_total", side="leader", throttled="true")
        cluster.compare_segments("orders", 0, 1, 2)  # byte for byte, or SegmentsDiffer
        cluster.check_logs()  # BadSigns; allow={"Shrinking ISR"} where the test itself provokes it

What to know:
- `weir.lab.modes.MODES` names every level that the jars can run, with the Fetch version its replicas use:
  `MODES["zookeeper-2.8"].cluster(sidecars=True)` fetches with v12. CORNERS are the three modes that differ most,
  and NEWEST is the last of them. Jars of modes that `make bench` alone runs are fetched when they first start.
- `weir.lab.secured.SecuredCluster` has brokers that speak TLS or SASL with each other, and an authorizer; Kerberos
  needs Debian's packages krb5-kdc and krb5-admin-server (`weir.lab.kerberos.missing`).
- `weir.lab.hosted.HostedCluster` has each broker on a host of its own (a network namespace), and sidecars that capture;
  with `security` (weir.lab.security) its brokers are secured, too.
- A cluster starts in 2 s (ZooKeeper) or 3 s (KRaft) on two idle cores. It ends at once, on exceptions and Ctrl-C too;
  when this program is killed, its reaper ends the brokers. After an exception the logs stay, and their folder is
  printed.
- Move data *from* broker 1: in KRaft mode it is also the controller. A move to `[1, 2]` keeps
  broker 1's replica for `compare_segments`; a move to `[2]` deletes it.
- Routes: `sidecars=True` is Route.BOTH for every broker (two hops: the follower's egress, then the leader's ingress);
  Others are set by `routes=Route.INGRESS` or `routes={1: Route.INGRESS, 2: Route.EGRESS}`. A broker without a route has
  no sidecar. KRaft brokers have a listener for clients alone; in ZooKeeper mode there is one listener, so clients
  pass the ingress too.
- Route.CONTROLLER, in KRaft mode and beside BOTH: kill_sidecar then cuts a broker off from all others, while clients
  (and `weir.lab.produce.append_to`, which does not look up the leader) still reach it.
- Every method blocks. From asyncio use `async with` for the cluster and `asyncio.to_thread` for its methods; `fill`
  and `read_numbers` run a loop of their own in a thread. In pytest the usual form is a module-scoped fixture that
  yields a cluster; mark its tests `integration`.
- Faults: kill_broker, stop_broker, start_broker; kill_sidecar, start_sidecar, `sidecars[1].stop()` (drains),
  `sidecars[1].send(signal.SIGHUP)`. In ZooKeeper mode a killed broker may only come back after its session (7 s);
  start_broker waits for that.
- Beside a move: `weir.lab.produce.LiveProducer` (a steady rate, with what was acked and its latencies), `LiveConsumer`
  (the records that arrived, with end-to-end latencies), and `read_numbers` (reads all of them back).
- `cluster.admin` (weir.lab.admin) reads and changes partitions, ISR, moves, configs and Kafka's own throttle.
"""
