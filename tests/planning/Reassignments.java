// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;

/** Reads reassignment files, one a line in base64, as kafka-reassign-partitions --execute does; prints what they say. */
public class Reassignments {
    public static void main(String[] arguments) throws Exception {
        Method parse = Class.forName("org.apache.kafka.tools.reassign.ReassignPartitionsCommand")
            .getDeclaredMethod("parseExecuteAssignmentArgs", String.class);
        parse.setAccessible(true);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(said(parse, new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8)));
        }
    }

    @SuppressWarnings("unchecked")
    private static String said(Method parse, String text) {
        try {
            Object read = parse.invoke(null, text);
            Map.Entry<Map<TopicPartition, Object>, Map<TopicPartitionReplica, String>> both =
                (Map.Entry<Map<TopicPartition, Object>, Map<TopicPartitionReplica, String>>) read;
            Map<String, String> told = new TreeMap<>();
            both.getKey().forEach((where, replicas) -> told.put(encoded(where.toString()), replicas.toString()));
            both.getValue().forEach((where, folder) ->
                told.put(encoded(where.topic() + "-" + where.partition() + " " + where.brokerId()), encoded(folder)));
            return told.toString();
        } catch (Exception error) {
            return "refused";
        }
    }

    private static String encoded(String text) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
