import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import kafka.security.authorizer.AclAuthorizer;
import kafka.server.ClientQuotaManager;
import kafka.server.QuotaType;
import org.apache.kafka.admin.AdminUtils;
import org.apache.kafka.admin.BrokerMetadata;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.Sanitizer;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.security.authorizer.AclEntry;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** Decides as Apache Kafka does: who may do what, whose quota counts, and where replicas go. */
public final class Decisions {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String DEFAULT = "<default>";

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode();
            ArrayNode found = answer.putArray("answers");
            switch (asked.get("about").asText()) {
                case "rules" -> rules(asked, found);
                case "quotas" -> quotas(asked, found);
                default -> places(asked, found);
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    private static void rules(JsonNode asked, ArrayNode found) throws Exception {
        AclAuthorizer authorizer = new AclAuthorizer();
        Set<KafkaPrincipal> supers = new HashSet<>();
        asked.get("super_users").forEach(each -> supers.add(SecurityUtils.parseKafkaPrincipal(each.asText())));
        for (Field field : AclAuthorizer.class.getDeclaredFields()) {
            field.setAccessible(true);
            if (field.getName().endsWith("superUsers")) {
                field.set(authorizer, CollectionConverters.asScala(supers).toSet());
            } else if (field.getName().endsWith("shouldAllowEveryoneIfNoAclIsFound")) {
                field.setBoolean(authorizer, asked.get("allow_if_none").asBoolean());
            }
        }
        Map<ResourcePattern, Set<AclEntry>> byResource = new HashMap<>();
        for (JsonNode rule : asked.get("rules")) {
            AccessControlEntry entry = new AccessControlEntry(
                rule.get(3).asText(), rule.get(4).asText(), operation(rule.get(5)),
                AclPermissionType.fromCode((byte) rule.get(6).asInt()));
            PatternType pattern = PatternType.fromCode((byte) rule.get(1).asInt());
            byResource.computeIfAbsent(
                new ResourcePattern(resource(rule.get(0)), rule.get(2).asText(), pattern), each -> new HashSet<>()
            ).add(new AclEntry(entry));
        }
        byResource.forEach((resource, entries) -> authorizer.updateCache(
            resource, new AclAuthorizer.VersionedAcls(CollectionConverters.asScala(entries).toSet(), 1)));
        for (JsonNode each : asked.get("questions")) {
            Client client = new Client(
                SecurityUtils.parseKafkaPrincipal(each.get(0).asText()), InetAddress.getByName(each.get(1).asText()));
            AclOperation operation = operation(each.get(2));
            ResourceType type = resource(each.get(3));
            AuthorizationResult result;
            if (each.get(4).isNull()) {
                result = authorizer.authorizeByResourceType(client, operation, type);
            } else {
                ResourcePattern named = new ResourcePattern(type, each.get(4).asText(), PatternType.LITERAL);
                result = authorizer.authorize(client, List.of(new Action(operation, named, 1, false, false))).get(0);
            }
            found.add(result == AuthorizationResult.ALLOWED);
        }
    }

    private static AclOperation operation(JsonNode code) {
        return AclOperation.fromCode((byte) code.asInt());
    }

    private static ResourceType resource(JsonNode code) {
        return ResourceType.fromCode((byte) code.asInt());
    }

    private record Client(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        @Override
        public String listenerName() {
            return "listener";
        }

        @Override
        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.PLAINTEXT;
        }

        @Override
        public int requestType() {
            return 1;
        }

        @Override
        public int requestVersion() {
            return 1;
        }

        @Override
        public String clientId() {
            return "client";
        }

        @Override
        public int correlationId() {
            return 1;
        }
    }

    private static void quotas(JsonNode asked, ArrayNode found) {
        ClientQuotaManager manager = new ClientQuotaManager(
            new ClientQuotaManagerConfig(), new Metrics(), QuotaType.Produce$.MODULE$, Time.SYSTEM, "judge",
            Option.empty());
        for (JsonNode each : asked.get("quotas")) {
            String client = each.get(1).textValue();
            manager.updateQuota(
                Option.apply(sanitized(each.get(0).textValue())), Option.apply(client),
                Option.apply(sanitized(client)), Option.apply(new Quota(each.get(2).asDouble(), true)));
        }
        for (JsonNode each : asked.get("questions")) {
            found.add(manager.quota(new KafkaPrincipal("User", each.get(0).asText()), each.get(1).asText()).bound());
        }
        manager.shutdown();
    }

    private static String sanitized(String name) {
        return name == null || name.equals(DEFAULT) ? name : Sanitizer.sanitize(name);
    }

    private static void places(JsonNode asked, ArrayNode found) {
        for (JsonNode each : asked.get("questions")) {
            List<BrokerMetadata> brokers = new ArrayList<>();
            for (JsonNode broker : each.get(0)) {
                brokers.add(new BrokerMetadata(broker.get(0).asInt(), Optional.ofNullable(broker.get(1).textValue())));
            }
            try {
                found.add(JSON.valueToTree(new TreeMap<>(AdminUtils.assignReplicasToBrokers(
                    brokers, each.get(1).asInt(), each.get(2).asInt(), each.get(3).asInt(), each.get(4).asInt()
                )).values()));
            } catch (RuntimeException refused) {
                found.addNull();
            }
        }
    }
}
