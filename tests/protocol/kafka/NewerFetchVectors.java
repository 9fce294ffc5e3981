// SPDX-License-Identifier: Apache-2.0
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Random;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.FetchRequestData;
import org.apache.kafka.common.message.FetchRequestDataJsonConverter;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.FetchResponseDataJsonConverter;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.common.requests.RequestHeader;

/**
 * Prints Fetch v4 to v18 requests and responses as Kafka's own classes write them: one JSON object a line, with the
 * bytes and the fields. Needs the jars of Kafka 4.4.0 on the class path:
 *
 * <pre>java -cp "JARS/*" NewerFetchVectors.java > newer_fetch_vectors.jsonl</pre>
 */
public class NewerFetchVectors {
    private static final Random RANDOM = new Random(391);

    public static void main(String[] args) throws Exception {
        for (short version = 4; version <= 18; version++) {
            for (int topics : new int[] {0, 1, 4}) {
                printRequest(version, topics);
                printResponse(version, topics);
            }
        }
    }

    private static void printRequest(short version, int topics) {
        FetchRequestData data = new FetchRequestData()
            .setMaxWaitMs(RANDOM.nextInt(1000)).setMinBytes(RANDOM.nextInt(100))
            .setMaxBytes(RANDOM.nextInt(Integer.MAX_VALUE)).setIsolationLevel((byte) RANDOM.nextInt(2));
        if (version < 15) data.setReplicaId(RANDOM.nextInt(5));
        else if (topics != 1)
            data.setReplicaState(new FetchRequestData.ReplicaState().setReplicaId(RANDOM.nextInt(5)).setReplicaEpoch(7));
        if (version >= 7) data.setSessionId(RANDOM.nextInt()).setSessionEpoch(RANDOM.nextInt());
        if (version >= 11) data.setRackId("rack-1");
        if (version >= 12 && topics == 4) data.setClusterId("cluster");
        for (int t = 0; t < topics; t++) {
            FetchRequestData.FetchTopic topic = new FetchRequestData.FetchTopic();
            if (version >= 13) topic.setTopicId(id(t));
            else topic.setTopic(name(t));
            for (int p = RANDOM.nextInt(5); p > 0; p--) {
                FetchRequestData.FetchPartition partition = new FetchRequestData.FetchPartition()
                    .setPartition(p).setFetchOffset(RANDOM.nextLong() >>> 1).setPartitionMaxBytes(RANDOM.nextInt());
                if (version >= 5) partition.setLogStartOffset(RANDOM.nextInt());
                if (version >= 9) partition.setCurrentLeaderEpoch(RANDOM.nextInt(9));
                if (version >= 12) partition.setLastFetchedEpoch(RANDOM.nextInt(9));
                if (version >= 17) partition.setReplicaDirectoryId(id(9));
                if (version >= 18 && RANDOM.nextBoolean()) partition.setHighWatermark(RANDOM.nextInt());
                topic.partitions().add(partition);
            }
            data.topics().add(topic);
            if (version >= 7 && t > 1) {
                FetchRequestData.ForgottenTopic forgotten =
                    new FetchRequestData.ForgottenTopic().setPartitions(List.of(t, 7));
                if (version >= 13) forgotten.setTopicId(id(t));
                else forgotten.setTopic(name(t));
                data.forgottenTopicsData().add(forgotten);
            }
        }
        String clientId = topics == 1 ? null : "broker-2-fetcher-0";
        RequestHeader header = new RequestHeader(ApiKeys.FETCH, version, clientId, RANDOM.nextInt());
        ObjectNode line = line("request", version, header.correlationId());
        line.put("client_id", clientId);
        line.set("fields", FetchRequestDataJsonConverter.write(data, version));
        print(line, new FetchRequest(data, version).serializeWithHeader(header));
    }

    private static void printResponse(short version, int topics) {
        FetchResponseData data = new FetchResponseData().setThrottleTimeMs(RANDOM.nextInt(1000));
        if (version >= 7) data.setSessionId(RANDOM.nextInt());
        if (version >= 7 && topics == 0) data.setErrorCode((short) 70);
        if (version >= 16 && topics == 4)
            data.nodeEndpoints().add(new FetchResponseData.NodeEndpoint().setNodeId(1).setHost("b").setPort(9092));
        for (int t = 0; t < topics; t++) {
            FetchResponseData.FetchableTopicResponse topic = new FetchResponseData.FetchableTopicResponse();
            if (version >= 13) topic.setTopicId(id(t));
            else topic.setTopic(name(t));
            for (int p = RANDOM.nextInt(5); p > 0; p--) {
                FetchResponseData.PartitionData partition = new FetchResponseData.PartitionData().setPartitionIndex(p)
                    .setErrorCode((short) RANDOM.nextInt(10)).setHighWatermark(RANDOM.nextLong() >>> 1)
                    .setLastStableOffset(RANDOM.nextInt()).setRecords(records(p));
                if (version >= 5) partition.setLogStartOffset(RANDOM.nextInt());
                if (RANDOM.nextBoolean()) partition.setAbortedTransactions(null);
                else if (RANDOM.nextBoolean())
                    partition.setAbortedTransactions(List.of(
                        new FetchResponseData.AbortedTransaction().setProducerId(5).setFirstOffset(6)));
                if (version >= 12 && RANDOM.nextBoolean())
                    partition.setDivergingEpoch(new FetchResponseData.EpochEndOffset().setEpoch(3).setEndOffset(4));
                if (version >= 12 && RANDOM.nextBoolean())
                    partition.setCurrentLeader(new FetchResponseData.LeaderIdAndEpoch().setLeaderId(1).setLeaderEpoch(4));
                topic.partitions().add(partition);
            }
            data.responses().add(topic);
        }
        int correlationId = RANDOM.nextInt();
        ObjectNode line = line("response", version, correlationId);
        line.set("fields", FetchResponseDataJsonConverter.write(data, version, false));
        ByteBuffer body = MessageUtil.toByteBufferAccessor(data, version).buffer();
        ByteBuffer frame = ByteBuffer.allocate(5 + body.remaining()).putInt(correlationId);
        if (version >= 12) frame.put((byte) 0);
        print(line, frame.put(body).flip());
    }

    /** None, no bytes, or one batch. */
    private static MemoryRecords records(int partition) {
        int kind = RANDOM.nextInt(3);
        if (kind == 0) return null;
        if (kind == 1) return MemoryRecords.EMPTY;
        byte[] value = new byte[RANDOM.nextInt(200)];
        RANDOM.nextBytes(value);
        return MemoryRecords.withRecords(1000L * partition, Compression.NONE, new SimpleRecord(0L, null, value));
    }

    private static String name(int topic) {
        return topic == 3 ? "t".repeat(249) : "orders-" + topic;
    }

    private static Uuid id(int topic) {
        return new Uuid(1_000_000_007L * (topic + 1), topic);
    }

    private static ObjectNode line(String kind, short version, int correlationId) {
        return JsonNodeFactory.instance.objectNode()
            .put("kind", kind).put("version", version).put("correlation_id", correlationId);
    }

    private static void print(ObjectNode line, ByteBuffer bytes) {
        StringBuilder hex = new StringBuilder();
        while (bytes.hasRemaining()) hex.append(String.format("%02x", bytes.get()));
        System.out.println(line.put("hex", hex.toString()));
    }
}
