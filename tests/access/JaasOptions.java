// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Comparator;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

/** Reads client properties, one file a line in base64, as kafka-clients do; prints the options of its login module. */
public class JaasOptions {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(options(new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8)));
        }
    }

    private static String options(String text) {
        try {
            Properties properties = new Properties();
            properties.load(new StringReader(text));
            Password jaas = new Password(properties.getProperty("sasl.jaas.config"));
            Map<String, Object> found = new TreeMap<>(Comparator.nullsFirst(Comparator.naturalOrder()));
            found.putAll(
                JaasContext.loadClientContext(Map.of("sasl.jaas.config", jaas)).configurationEntries().get(0).getOptions());
            StringBuilder told = new StringBuilder();
            found.forEach((name, value) -> told.append(encoded(name == null ? "" : name)).append('=').append(encoded(value.toString())).append(' '));
            return told.toString().trim();
        } catch (Exception error) {
            return "refused";
        }
    }

    private static String encoded(String text) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
