// Kafka's own client logs in, writes and reads; see clients.py.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Logins {
    private static final String PACKAGE = "org.apache.kafka.common.security.";

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        Object said;
        try {
            said = run(json.readTree(arguments[0]));
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            StringBuilder text = new StringBuilder();
            for (; cause != null; cause = cause.getCause()) text.append(cause).append("; ");
            said = Map.of("error", text.toString());
        }
        System.out.println(json.writeValueAsString(said));
        System.exit(0);
    }

    private static Map<String, Integer> run(JsonNode given) throws Exception {
        Properties security = security(given);
        String topic = given.get("topic").asText();
        int count = given.get("count").asInt();
        Properties writing = new Properties();
        writing.putAll(security);
        writing.put("acks", "all");
        writing.put("max.block.ms", "20000");
        try (var producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, 0, null, Integer.toString(number))).get();
                Thread.sleep((long) (1000 * given.get("pause_s").asDouble()));
            }
        }
        int read = 0;
        Properties reading = new Properties();
        reading.putAll(security);
        reading.put("auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            long end = System.nanoTime() + 20_000_000_000L;
            while (read < count && System.nanoTime() < end) read += consumer.poll(Duration.ofMillis(500)).count();
        }
        return Map.of("written", count, "read", read);
    }

    private static Properties security(JsonNode given) throws Exception {
        Properties found = new Properties();
        found.put("bootstrap.servers", given.get("bootstrap").asText());
        found.put("security.protocol", given.get("protocol").asText());
        if (!given.get("ca").asText().isEmpty()) {
            found.put("ssl.truststore.type", "PEM");
            found.put("ssl.truststore.location", given.get("ca").asText());
        }
        if (!given.get("cert").asText().isEmpty()) {
            found.put("ssl.keystore.type", "PEM");
            found.put("ssl.keystore.location", given.get("cert").asText());
        }
        String mechanism = given.get("mechanism").asText();
        if (mechanism.isEmpty()) return found;
        found.put("sasl.mechanism", mechanism);
        if (mechanism.equals("OAUTHBEARER")) {
            Path token = Files.createTempFile("token", ".jwt");
            token.toFile().deleteOnExit();
            Files.writeString(token, given.get("token").asText());
            found.put("sasl.oauthbearer.token.endpoint.url", token.toUri().toString());
            found.put("sasl.login.callback.handler.class", PACKAGE + "oauthbearer.OAuthBearerLoginCallbackHandler");
            found.put("sasl.jaas.config", PACKAGE + "oauthbearer.OAuthBearerLoginModule required;");
            return found;
        }
        String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        String byToken = given.path("by_token").asBoolean() ? " tokenauth=\"true\"" : "";
        String login = " required username=\"%s\" password=\"%s\"" + byToken + ";";
        String filled = String.format(login, given.get("user").asText(), given.get("password").asText());
        found.put("sasl.jaas.config", PACKAGE + module + filled);
        return found;
    }
}
