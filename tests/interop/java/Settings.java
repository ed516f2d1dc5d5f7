import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Tells which settings a broker or a topic of Apache Kafka has, of which type, and which values it accepts. */
public final class Settings {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode();
            ArrayNode found = answer.putArray("answers");
            if (asked.has("values")) {
                for (JsonNode value : asked.get("values")) {
                    found.add(accepts(asked.get("is_topic").asBoolean(), asked.get("name").asText(), value.asText()));
                }
            } else {
                tell(asked.get("is_topic").asBoolean() ? LogConfig.configDefCopy() : KafkaConfig.configDef(), found);
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    private static void tell(ConfigDef settings, ArrayNode found) {
        for (ConfigDef.ConfigKey key : settings.configKeys().values()) {
            found.addArray().add(key.name).add(key.type.toString());
        }
    }

    private static boolean accepts(boolean isTopic, String name, String value) {
        Properties properties = new Properties();
        properties.setProperty(name, value);
        try {
            if (isTopic) {
                LogConfig.validate(properties);
            } else {
                properties.putIfAbsent("zookeeper.connect", "localhost:2181");
                KafkaConfig.fromProps(properties, false);
            }
            return true;
        } catch (RuntimeException | AssertionError refused) {
            return false;
        }
    }
}
