// SPDX-License-Identifier: Apache-2.0
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;

/** Runs Java's client as a job says (key=value arguments), and prints what happened as one line of JSON. */
public final class ForeignClient {
    private static final long BEGIN = System.currentTimeMillis();
    private static final Map<Long, Integer> ARRIVALS = new TreeMap<>();
    private static final Set<String> SEEN = new HashSet<>();
    private static final List<String> ERRORS = new ArrayList<>();
    private static int records;

    private static synchronized void add(String value) {
        records++;
        SEEN.add(value.substring(0, 8));
        ARRIVALS.merge((System.currentTimeMillis() - BEGIN) / 10, 1, Integer::sum);
    }

    private static synchronized void fail(Exception error) {
        ERRORS.add("\"" + error.toString().replace("\\", "\\\\").replace("\"", "'").replace("\n", " ") + "\"");
    }

    public static void main(String[] arguments) throws InterruptedException {
        Map<String, String> job = new HashMap<>();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            job.put(parts[0], parts[1]);
        }
        switch (job.get("role")) {
            case "produce" -> produceTogether(job);
            case "transact" -> transact(job);
            case "consume" -> consume(job);
            case "share" -> share(job);
            default -> throw new IllegalArgumentException(job.get("role"));
        }
        String arrivals = ARRIVALS.entrySet().stream()
            .map(one -> "\"" + one.getKey() + "\":" + one.getValue()).collect(Collectors.joining(","));
        System.out.println("{\"records\":" + records + ",\"distinct\":" + SEEN.size() + ",\"arrivals\":{" + arrivals
            + "},\"errors\":[" + String.join(",", ERRORS) + "]}");
    }

    private static Properties properties(Map<String, String> job, String kind, String coder) {
        Properties found = new Properties();
        found.put("bootstrap.servers", job.get("bootstrap"));
        found.put("client.id", job.get("client_id"));
        for (String side : List.of("key", "value")) {
            found.put(side + "." + coder, "org.apache.kafka.common.serialization.String" + kind);
        }
        return found;
    }

    private static String value(Map<String, String> job, int number) {
        return String.format("%08d", number) + "x".repeat(Integer.parseInt(job.get("size")) - 8);
    }

    private static long left(Map<String, String> job) {
        long end = BEGIN + (long) (1000 * Double.parseDouble(job.get("seconds")));
        return Math.max(0, end - System.currentTimeMillis());
    }

    private static void consume(Map<String, String> job) {
        Properties settings = properties(job, "Deserializer", "deserializer");
        settings.put("group.id", job.get("client_id"));
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.partition.fetch.bytes", job.get("fetch_bytes"));
        settings.put("isolation.level", "read_committed");
        try (Consumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(job.get("topic")));
            while (SEEN.size() < Integer.parseInt(job.get("count")) && left(job) > 0) {
                consumer.poll(Duration.ofMillis(100)).forEach(one -> add(one.value()));
            }
        } catch (Exception error) {
            fail(error);
        }
    }

    private static void share(Map<String, String> job) {
        Properties settings = properties(job, "Deserializer", "deserializer");
        settings.put("group.id", job.get("client_id"));
        settings.put("max.poll.records", job.get("batch"));
        try (ShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.subscribe(List.of(job.get("topic")));
            while (SEEN.size() < Integer.parseInt(job.get("count")) && left(job) > 0) {
                consumer.poll(Duration.ofMillis(100)).forEach(one -> add(one.value()));
            }
        } catch (Exception error) {
            fail(error);
        }
    }

    private static void produceTogether(Map<String, String> job) throws InterruptedException {
        int producers = Integer.parseInt(job.get("producers"));
        List<Thread> together = IntStream.range(0, producers)
            .mapToObj(first -> new Thread(() -> produce(job, first, producers))).toList();
        together.forEach(Thread::start);
        for (Thread one : together) one.join();
    }

    private static void produce(Map<String, String> job, int first, int step) {
        Properties settings = properties(job, "Serializer", "serializer");
        int size = Integer.parseInt(job.get("size"));
        settings.put("acks", job.get("acks"));
        settings.put("batch.size", Integer.toString(Integer.parseInt(job.get("batch")) * (size + 8) + 100));
        settings.put("linger.ms", "20");
        settings.put("metadata.max.age.ms", job.get("metadata_ms"));
        if (!job.get("acks").equals("-1")) settings.put("enable.idempotence", "false");
        Producer<String, String> producer = new KafkaProducer<>(settings);
        for (int number = first; number < Integer.parseInt(job.get("count")); number += step) {
            String value = value(job, number);
            producer.send(new ProducerRecord<>(job.get("topic"), value), (metadata, error) -> {
                if (error == null) add(value); else fail(error);
            });
        }
        producer.close(Duration.ofMillis(left(job)));
    }

    /** Writes `batch` records in each transaction, and aborts every second one. */
    private static void transact(Map<String, String> job) {
        Properties settings = properties(job, "Serializer", "serializer");
        settings.put("transactional.id", job.get("client_id"));
        int count = Integer.parseInt(job.get("count")), batch = Integer.parseInt(job.get("batch"));
        try (Producer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int first = 0; first < count; first += batch) {
                List<String> values = IntStream.range(first, Math.min(count, first + batch))
                    .mapToObj(number -> value(job, number)).toList();
                producer.beginTransaction();
                values.forEach(value -> producer.send(new ProducerRecord<>(job.get("topic"), value)));
                if (first / batch % 2 == 0) {
                    producer.commitTransaction();
                    values.forEach(ForeignClient::add);
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        } catch (Exception error) {
            fail(error);
        }
    }
}
