// SPDX-License-Identifier: Apache-2.0
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.FetchRequestData;
import org.apache.kafka.common.message.FetchRequestDataJsonConverter;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.FetchResponseDataJsonConverter;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.common.requests.RequestHeader;

/**
 * Prints Fetch v0 to v3 requests and responses as Kafka's own classes write them: one JSON object a line, with the
 * bytes, the fields, and what Kafka's own reader makes of the records. Needs the jars of Kafka 3.9.2 on the class path:
 *
 * <pre>java -cp "JARS/*" tests/protocol/kafka/FetchVectors.java > tests/protocol/kafka/fetch_vectors.jsonl</pre>
 */
public class FetchVectors {
    private static final Random RANDOM = new Random(391);

    public static void main(String[] args) throws Exception {
        for (short version = 0; version <= 3; version++) {
            for (int topics : new int[] {0, 1, 4}) {
                printRequest(version, topics);
                printResponse(version, topics);
            }
        }
    }

    private static void printRequest(short version, int topics) {
        FetchRequestData data = new FetchRequestData()
            .setReplicaId(RANDOM.nextInt(5)).setMaxWaitMs(RANDOM.nextInt(1000)).setMinBytes(RANDOM.nextInt(100));
        if (version >= 3) data.setMaxBytes(RANDOM.nextInt(Integer.MAX_VALUE));
        for (int t = 0; t < topics; t++) {
            FetchRequestData.FetchTopic topic = new FetchRequestData.FetchTopic().setTopic(name(t));
            for (int p = RANDOM.nextInt(5); p > 0; p--)
                topic.partitions().add(new FetchRequestData.FetchPartition()
                    .setPartition(p).setFetchOffset(RANDOM.nextLong() >>> 1).setPartitionMaxBytes(RANDOM.nextInt()));
            data.topics().add(topic);
        }
        String clientId = topics == 1 ? null : "broker-2-fetcher-0";
        RequestHeader header = new RequestHeader(ApiKeys.FETCH, version, clientId, RANDOM.nextInt());
        ObjectNode line = line("request", version, header.correlationId());
        line.put("client_id", clientId);
        line.set("fields", FetchRequestDataJsonConverter.write(data, version));
        print(line, new FetchRequest(data, version).serializeWithHeader(header));
    }

    private static void printResponse(short version, int topics) {
        FetchResponseData data = new FetchResponseData();
        if (version >= 1) data.setThrottleTimeMs(RANDOM.nextInt(1000));
        ArrayNode records = JsonNodeFactory.instance.arrayNode();
        for (int t = 0; t < topics; t++) {
            FetchResponseData.FetchableTopicResponse topic =
                new FetchResponseData.FetchableTopicResponse().setTopic(name(t));
            for (int p = RANDOM.nextInt(5); p > 0; p--) {
                MemoryRecords all = MemoryRecords.readableRecords(records(p, version));
                topic.partitions().add(new FetchResponseData.PartitionData().setPartitionIndex(p)
                    .setErrorCode((short) RANDOM.nextInt(10)).setHighWatermark(RANDOM.nextLong() >>> 1)
                    .setRecords(all));
                if (all.sizeInBytes() > 0) records.add(read(name(t), p, all));
            }
            data.responses().add(topic);
        }
        int correlationId = RANDOM.nextInt();
        ObjectNode line = line("response", version, correlationId);
        line.set("fields", FetchResponseDataJsonConverter.write(data, version, false));
        line.set("records", records);
        ByteBuffer body = MessageUtil.toByteBuffer(data, version);
        print(line, ByteBuffer.allocate(4 + body.remaining()).putInt(correlationId).put(body).flip());
    }

    /** Up to three batches (v0, v1: magic 0; v2: 1; v3: also 2, which old brokers never send), the last one often cut. */
    private static ByteBuffer records(int partition, short version) {
        ByteBuffer buffer = ByteBuffer.allocate(4096);
        int batches = RANDOM.nextInt(4);
        byte magic = (byte) (version < 2 ? 0 : version < 3 ? 1 : 1 + RANDOM.nextInt(2));
        long offset = 1000L * partition;
        for (int b = 0; b < batches; b++) {
            SimpleRecord[] records = new SimpleRecord[1 + RANDOM.nextInt(3)];
            for (int r = 0; r < records.length; r++) {
                byte[] value = new byte[RANDOM.nextInt(40)];
                RANDOM.nextBytes(value);
                records[r] = new SimpleRecord(magic == 0 ? -1L : 1_479_000_000_000L + r, "k".getBytes(), value);
            }
            Compression compression = RANDOM.nextBoolean() ? Compression.NONE : Compression.gzip().build();
            buffer.put(MemoryRecords.withRecords(magic, offset, compression, records).buffer());
            offset += records.length;
        }
        buffer.flip();
        if (batches > 0 && RANDOM.nextBoolean()) buffer.limit(buffer.limit() - 1 - RANDOM.nextInt(25));
        return buffer;
    }

    /** What Kafka reads from records: the sizes of whole batches, how many bytes they have, and the next one's size. */
    private static ObjectNode read(String topic, int partition, MemoryRecords all) {
        ObjectNode node = JsonNodeFactory.instance.objectNode();
        node.put("topic", topic).put("partition", partition).put("valid_bytes", all.validBytes());
        List<Integer> sizes = new ArrayList<>();
        for (MutableRecordBatch batch : all.batches()) sizes.add(batch.sizeInBytes());
        ArrayNode array = node.putArray("batch_sizes");
        sizes.forEach(array::add);
        return node;
    }

    private static String name(int topic) {
        return topic == 3 ? "t".repeat(249) : "orders-" + topic;
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
