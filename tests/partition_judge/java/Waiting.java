// Fetches that wait in Apache Kafka's own `DelayedFetch`, and are read by its own replica manager.
//
// The manager is made without its constructor: it has only what a read of the one partition needs.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Supplier;
import kafka.cluster.Partition;
import kafka.server.DelayedFetch;
import kafka.server.FetchPartitionStatus;
import kafka.server.HostedPartition;
import kafka.server.QuotaFactory;
import kafka.server.ReplicaManager;
import kafka.server.ReplicaQuota;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.internals.Plugin;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.replica.ClientMetadata;
import org.apache.kafka.common.replica.RackAwareReplicaSelector;
import org.apache.kafka.common.replica.ReplicaSelector;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.metadata.MetadataCache;
import org.apache.kafka.server.LogReadResult;
import org.apache.kafka.server.storage.log.FetchParams;
import org.apache.kafka.server.storage.log.FetchPartitionData;
import scala.Option;
import scala.Tuple2;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.BoxedUnit;
import sun.reflect.ReflectionFactory;

class Waiting {
    private static final Errors NONE = Errors.NONE;

    private final Broker broker;
    private final Map<Integer, DelayedFetch> fetches = new TreeMap<>();
    private ObjectNode answers = Judge.JSON.createObjectNode();

    Waiting(Supplier<Partition> partition, MetadataCache metadata) throws Exception {
        broker = (Broker) ReflectionFactory.getReflectionFactory()
                .newConstructorForSerialization(Broker.class, Object.class.getConstructor())
                .newInstance();
        broker.judged = partition;
        ReplicaSelector selector = new RackAwareReplicaSelector();
        set("replicaSelectorPlugin", Option.apply(Plugin.wrapInstance(selector, (Metrics) null, "selector")));
        set("metadataCache", metadata);
        set("time", Judge.CLOCK);
        set("brokerTopicStats", Judge.STATS);
        set("remoteLogManager", Option.empty());
    }

    private void set(String name, Object value) throws Exception {
        Field field = ReplicaManager.class.getDeclaredField(name);
        field.setAccessible(true);
        field.set(broker, value);
    }

    /** As the replica manager does it: answer, or wait. */
    void fetch(JsonNode op, FetchParams params, FetchRequest.PartitionData wanted, TopicIdPartition place) {
        int number = op.get("number").asInt();
        LogReadResult found = broker.readFromLog(params, one(place, wanted), QuotaFactory.UNBOUNDED_QUOTA, false).head()._2;
        boolean isFinal = found.error() != NONE
                || found.divergingEpoch().isPresent()
                || found.preferredReadReplica().isPresent()
                || found.info().records.sizeInBytes() >= params.minBytes;
        if (isFinal) {
            answer(number, found.toFetchPartitionData(false));
            return;
        }
        DelayedFetch delayed = new DelayedFetch(
                params, one(place, new FetchPartitionStatus(found.info().fetchOffsetMetadata, wanted)),
                broker, QuotaFactory.UNBOUNDED_QUOTA,
                data -> {
                    answer(number, data.head()._2);
                    return BoxedUnit.UNIT;
                });
        fetches.put(number, delayed);
    }

    private static <T> Seq<Tuple2<TopicIdPartition, T>> one(TopicIdPartition place, T value) {
        return CollectionConverters.asScala(List.of(new Tuple2<>(place, value))).toSeq();
    }

    /** Answer what can be answered. */
    void complete() {
        fetches.values().removeIf(DelayedFetch::tryComplete);
    }

    void answerNow(int number) {
        fetches.remove(number).forceComplete();
    }

    void forget(int number) {
        fetches.remove(number);
        answers.remove(String.valueOf(number));
    }

    void forget() {
        fetches.clear();
    }

    private void answer(int number, FetchPartitionData data) {
        ObjectNode answer = answers.putObject(String.valueOf(number));
        if (data.error != NONE) {
            answer.put("error", data.error.name());
            return;
        }
        answer.put("high_watermark", data.highWatermark);
        answer.put("start", data.logStartOffset);
        try {
            answer.put("data", HexFormat.of().formatHex(Judge.bytes(data.records)));
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        data.preferredReadReplica.ifPresent(each -> answer.put("preferred", each));
        data.divergingEpoch.ifPresent(each -> answer.putArray("diverging").add(each.epoch()).add(each.endOffset()));
    }

    /** Forget the answers of the last operation. */
    void begin() {
        answers = Judge.JSON.createObjectNode();
    }

    /** Describe what waits, and what the operation has answered. */
    void describe(ObjectNode state) {
        ArrayNode waiting = state.putArray("fetching");
        fetches.keySet().forEach(waiting::add);
        state.set("fetched", answers);
    }

    /** A consumer that names its rack; none if it does not. */
    static Optional<ClientMetadata> client(JsonNode op) throws Exception {
        if (!op.hasNonNull("rack")) return Optional.empty();
        return Optional.of(new ClientMetadata.DefaultClientMetadata(
                op.get("rack").asText(), "judge", InetAddress.getLoopbackAddress(), KafkaPrincipal.ANONYMOUS, "PLAINTEXT"));
    }

    private static class Broker extends ReplicaManager {
        private Supplier<Partition> judged;

        private Broker() {
            super(null, null, null, null, null, null, null, null, null, null, null, null,
                    null, null, null, null, null, null, null, null, null, null, null);
        }

        @Override public HostedPartition getPartition(TopicPartition topicPartition) {
            return new HostedPartition.Online(judged.get());
        }
        @Override public Partition getPartitionOrException(TopicPartition topicPartition) { return judged.get(); }
        @Override public Partition getPartitionOrException(TopicIdPartition topicIdPartition) { return judged.get(); }
        @Override public boolean shouldLeaderThrottle(ReplicaQuota quota, Partition partition, int replicaId) { return false; }
    }
}
