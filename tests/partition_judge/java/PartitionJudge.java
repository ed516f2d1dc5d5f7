// Apache Kafka's own partition, driven by operations: one JSON line in, one JSON line out.
//
// This broker is number 0. What surrounds a partition in a broker is simulated here: the metadata cache, the
// controller that answers ISR proposals, the leader that a follower fetches from. The clock, and work that is due,
// are as in Judge.java, which this program is compiled with. Each answer has `result` or `error`, and `state`.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import kafka.cluster.AlterPartitionListener;
import kafka.cluster.DelayedOperations;
import kafka.cluster.Partition;
import kafka.cluster.PendingPartitionChange;
import kafka.log.LogManager;
import kafka.server.AbstractFetcherThread;
import kafka.server.FailedPartitions;
import kafka.server.InitialFetchState;
import kafka.server.OffsetTruncationState;
import kafka.server.TierStateMachine;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.message.AlterPartitionRequestData.BrokerState;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.OffsetForLeaderEpochRequestData.OffsetForLeaderPartition;
import org.apache.kafka.common.message.OffsetForLeaderEpochResponseData.EpochEndOffset;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.FileRecords.TimestampAndOffset;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.common.requests.FetchResponse;
import org.apache.kafka.common.requests.LeaderAndIsrRequest;
import org.apache.kafka.metadata.ConfigRepository;
import org.apache.kafka.metadata.LeaderAndIsr;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.MetadataCache;
import org.apache.kafka.server.LeaderEndPoint;
import org.apache.kafka.server.PartitionFetchState;
import org.apache.kafka.server.ReplicaFetch;
import org.apache.kafka.server.ResultWithPartitions;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.network.BrokerEndPoint;
import org.apache.kafka.server.replica.Replica;
import org.apache.kafka.server.replica.ReplicaState;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.storage.log.FetchParams;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpoints;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogReadInfo;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.OffsetResultHolder;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

public class PartitionJudge {
    static final int LOCAL = 0;
    static final TopicPartition TP = new TopicPartition("judged", 0);
    /** Operations that only bring the sides together. */
    static final Set<String> SETTLING = Set.of("nothing", "forget", "answer_now", "lower", "advance", "begin_anew", "assign");
    static final Uuid TOPIC_ID = new Uuid(1, 2);

    private final Map<Integer, Long> alive = new TreeMap<>();
    private final Set<Integer> stopping = new TreeSet<>();
    record Proposal(LeaderAndIsr sent, CompletableFuture<LeaderAndIsr> answer) {}

    private final Deque<Proposal> proposals = new ArrayDeque<>();
    /** Appends with acks=all that are not answered yet, and the answers given since: by number. */
    private final Map<Integer, Long> waiting = new TreeMap<>();
    private final Map<Integer, String> acknowledged = new TreeMap<>();

    private Properties config;
    private File directory;
    private int maxLag;
    private JsonNode racks;
    private long epochOfBroker;
    private long highWatermarkOnDisk;
    private LogManager logs;
    private Partition partition;
    private Fetcher fetcher;
    private Waiting fetches;

    public static void main(String[] arguments) throws Exception {
        PartitionJudge judge = new PartitionJudge();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = Judge.JSON.createObjectNode();
            try {
                answer.set("result", judge.perform(Judge.JSON.readTree(line)));
            } catch (Throwable error) {
                Throwable cause = error instanceof InvocationTargetException ? error.getCause() : error;
                String name = Errors.forException(cause).name();
                answer.put("error", name.equals("UNKNOWN_SERVER_ERROR") ? cause.getClass().getSimpleName() : name);
                answer.put("message", String.valueOf(cause.getMessage()));
            }
            try {
                if (judge.fetches != null && judge.partition != null) judge.fetches.complete();
                answer.set("state", judge.state());
            } catch (Exception error) {
                answer.putObject("state").put("failure", error.toString());
            }
            System.out.println(Judge.JSON.writeValueAsString(answer));
        }
        System.exit(0);
    }

    private JsonNode perform(JsonNode op) throws Exception {
        if (fetches != null && !SETTLING.contains(op.get("op").asText())) fetches.begin();
        switch (op.get("op").asText()) {
            case "begin": return begin(op);
            case "end":
                stop();
                return null;
            case "nothing": case "session": case "unanswered": return null;
            case "config":
                config.put("min.insync.replicas", op.get("min_insync").asText());
                Option<UnifiedLog> known = logs.getLog(TP, false);
                if (known.isDefined()) known.get().updateConfig(new LogConfig(config));
                return null;
            case "restart":
                boolean isClean = op.get("is_clean").asBoolean();
                if (isClean) checkpoint();
                stop();
                if (!isClean) new File(directory, ".kafka_cleanshutdown").delete();
                start();
                return null;
            case "checkpoint":
                checkpoint();
                return null;
            case "clock":
                Judge.CLOCK.set(op.get("now").asLong());
                return null;
            case "brokers": return brokers(op);
            case "role": return role(op);
            case "append": return append(op, AppendOrigin.CLIENT);
            case "marker": return append(op, AppendOrigin.COORDINATOR);
            case "fetch": return fetch(op);
            case "wait":
                fetches.fetch(op, params(op), wanted(op), new TopicIdPartition(TOPIC_ID, TP));
                return null;
            case "answer_now":
                fetches.answerNow(op.get("number").asInt());
                return null;
            case "forget":
                fetches.forget(op.get("number").asInt());
                return null;
            case "list": return list(op);
            case "epoch_end":
                EpochEndOffset end = partition.lastOffsetForLeaderEpoch(
                        epoch(op, "current_epoch"), op.get("epoch").asInt(), true);
                check(end.errorCode());
                return pair(end.leaderEpoch(), end.endOffset());
            case "delete": return delete(op.get("offset").asLong());
            case "shrink":
                partition.maybeShrinkIsr();
                proposeAgain();
                return null;
            case "answer": return answer(op);
            case "leader_answers": return fetcher.turn(op);
            case "roll":
                if (log().activeSegment().size() > 0) log().roll();
                return null;
            case "lower":
                log().updateHighWatermark(op.get("offset").asLong());
                return null;
            case "begin_anew":
                beginAnew();
                if (fetcher.fetchState(TP).isDefined()) fetcher.again();
                return null;
            case "assign":
                log().assignEpochStartOffset(op.get("epoch").asInt(), op.get("offset").asLong());
                if (fetcher.leader.truncatesOnFetch || op.get("truncating").asBoolean()) fetcher.again();
                return null;
            case "advance":
                Method advance = Partition.class.getDeclaredMethod("maybeIncrementLeaderHW", UnifiedLog.class, long.class);
                advance.setAccessible(true);
                advance.invoke(partition, log(), Judge.CLOCK.milliseconds());
                complete();
                return null;
            default: throw new IllegalArgumentException(op.toString());
        }
    }

    private void beginAnew() {
        partition.truncateFullyAndStartAt(log().logEndOffset(), false, Optional.empty());
    }

    private UnifiedLog log() {
        return partition.localLogOrException();
    }

    private static void check(short code) {
        if (code != Errors.NONE.code()) throw Errors.forCode(code).exception();
    }

    private static Optional<Integer> epoch(JsonNode op, String name) {
        int epoch = op.path(name).asInt(-1);
        return epoch < 0 ? Optional.empty() : Optional.of(epoch);
    }

    private static ArrayNode pair(long first, long second) {
        return Judge.JSON.createArrayNode().add(first).add(second);
    }

    private static List<Integer> numbers(JsonNode list) {
        List<Integer> found = new ArrayList<>();
        list.forEach(each -> found.add(each.asInt()));
        return found;
    }

    // --- the broker around the partition ---------------------------------------------------------------------

    private JsonNode begin(JsonNode op) throws Exception {
        Judge.CLOCK.set(op.get("now").asLong());
        directory = new File(op.get("directory").asText());
        directory.mkdirs();
        config = new Properties();
        op.get("config").properties().forEach(each -> config.put(each.getKey(), each.getValue().asText()));
        maxLag = op.get("max_lag").asInt();
        racks = op.get("racks");
        epochOfBroker = op.get("broker_epoch").asLong();
        highWatermarkOnDisk = 0;
        alive.clear();
        stopping.clear();
        fetcher = new Fetcher(op.get("truncates_on_fetch").asBoolean());
        fetches = new Waiting(() -> partition, metadata());
        start();
        return null;
    }

    private void start() throws Exception {
        ConfigRepository repository = resource -> config;
        logs = new LogManager(
                CollectionConverters.asScala(List.of(directory)).toSeq(),
                CollectionConverters.asScala(List.<File>of()).toSeq(),
                repository,
                new LogConfig(config),
                new CleanerConfig(false),
                1, Long.MAX_VALUE, Long.MAX_VALUE, Long.MAX_VALUE, Long.MAX_VALUE,
                15 * 60_000,
                new ProducerStateManagerConfig(86_400_000, false),
                600_000,
                Judge.CLOCK,
                Judge.STATS,
                new LogDirFailureChannel(10),
                Judge.CLOCK,
                false,
                30_000);
        logs.startup(CollectionConverters.asScala(Set.of(TP.topic())).toSet(), log -> false);
        fetcher.remove();
        fetches.forget();
        forget();
        partition = new Partition(
                TP, maxLag, LOCAL, () -> epochOfBroker, Judge.CLOCK,
                new AlterPartitionListener() {
                    @Override public void markIsrExpand() { }
                    @Override public void markIsrShrink() { }
                    @Override public void markFailed() { }
                },
                new Delayed(), metadata(), logs,
                (topic, proposed) -> {
                    CompletableFuture<LeaderAndIsr> future = new CompletableFuture<>();
                    proposals.add(new Proposal(proposed, future));
                    return future;
                },
                Option.apply(TOPIC_ID));
    }

    private void stop() throws Exception {
        if (logs != null) logs.shutdown(-1);
        logs = null;
        partition = null;
        Judge.CLOCK.forget();
    }

    private void checkpoint() {
        highWatermarkOnDisk = partition.log().isEmpty() ? highWatermarkOnDisk : log().highWatermark();
    }

    private void forget() {
        proposals.clear();
        waiting.clear();
        acknowledged.clear();
    }

    private MetadataCache metadata() {
        return (MetadataCache) Proxy.newProxyInstance(
                PartitionJudge.class.getClassLoader(), new Class<?>[] {MetadataCache.class}, (proxy, method, args) ->
                    switch (method.getName()) {
                        case "hasAliveBroker" -> alive.containsKey(args[0]);
                        case "getAliveBrokerEpoch" -> Optional.ofNullable(alive.get(args[0]));
                        case "isBrokerFenced" -> !alive.containsKey(args[0]);
                        case "isBrokerShuttingDown" -> stopping.contains(args[0]);
                        case "getPartitionReplicaEndpoints" -> endpoints();
                        default -> throw new UnsupportedOperationException(method.getName());
                    });
    }

    private Map<Integer, Node> endpoints() {
        Map<Integer, Node> found = new TreeMap<>();
        found.put(LOCAL, new Node(LOCAL, "localhost", 1, racks.get(String.valueOf(LOCAL)).asText()));
        alive.keySet().forEach(each -> found.put(each, new Node(each, "localhost", 1, racks.get(String.valueOf(each)).asText())));
        return found;
    }

    private JsonNode brokers(JsonNode op) {
        alive.clear();
        op.get("alive").properties().forEach(each -> alive.put(Integer.valueOf(each.getKey()), each.getValue().asLong()));
        stopping.clear();
        stopping.addAll(numbers(op.get("stopping")));
        return null;
    }

    /** Waiting requests are looked at whenever Kafka does so. */
    private class Delayed extends DelayedOperations {
        Delayed() { super(Option.empty(), TP, null, null, null, null); }
        @Override public void checkAndCompleteAll() { complete(); }
        @Override public int numDelayedDelete() { return 0; }
    }

    private void complete() {
        waiting.entrySet().removeIf(each -> {
            scala.Tuple2<Object, Errors> found = partition.checkEnoughReplicasReachOffset(each.getValue());
            boolean isDone = (Boolean) found._1 || found._2 != Errors.NONE;
            if (isDone) acknowledged.put(each.getKey(), found._2.name());
            return isDone;
        });
    }

    // --- roles -----------------------------------------------------------------------------------------------

    /** As `ReplicaManager` does it; a state that is not new is for it to recognize. */
    private JsonNode role(JsonNode op) throws Exception {
        int leader = op.get("leader").asInt(), leaderEpoch = op.get("leader_epoch").asInt();
        boolean leads = leader == LOCAL, led = partition.isLeader();
        boolean isOld = leaderEpoch < partition.getLeaderEpoch()
                || op.get("partition_epoch").asInt() < partition.getPartitionEpoch();
        LeaderAndIsrRequest.PartitionState state = new LeaderAndIsrRequest.PartitionState()
                .setTopicName(TP.topic())
                .setPartitionIndex(TP.partition())
                .setLeader(leader)
                .setLeaderEpoch(leaderEpoch)
                .setIsr(numbers(op.get("isr")))
                .setPartitionEpoch(op.get("partition_epoch").asInt())
                .setReplicas(numbers(op.get("replicas")))
                .setAddingReplicas(numbers(op.get("adding")))
                .setRemovingReplicas(numbers(op.get("removing")))
                .setIsNew(op.get("is_new").asBoolean())
                .setLeaderRecoveryState(LeaderRecoveryState.RECOVERED.value());
        OffsetCheckpoints checkpoints = (dir, topicPartition) -> Optional.of(highWatermarkOnDisk);
        if (leads && led && leaderEpoch > partition.getLeaderEpoch() + 1) {
            // Else it would keep what it knows of its followers, of which another leader may have cut something.
            state.setLeaderEpoch(leaderEpoch - 1).setLeader(-1);
            partition.makeFollower(state, checkpoints, Option.apply(TOPIC_ID), Option.empty());
            state.setLeaderEpoch(leaderEpoch).setLeader(leader);
        }
        if (isOld) {
            if (leads) partition.makeLeader(state, checkpoints, Option.apply(TOPIC_ID), Option.empty());
            else partition.makeFollower(state, checkpoints, Option.apply(TOPIC_ID), Option.empty());
            throw Errors.STALE_CONTROLLER_EPOCH.exception();
        }
        if (leads) {
            fetcher.remove();
            partition.makeLeader(state, checkpoints, Option.apply(TOPIC_ID), Option.empty());
            if (!led) {
                waiting.clear();
                acknowledged.clear();
            }
            complete();
        } else {
            waiting.clear();
            acknowledged.clear();
            if (partition.makeFollower(state, checkpoints, Option.apply(TOPIC_ID), Option.empty())) {
                fetcher.remove();
                if (leader >= 0) fetcher.add(leader, leaderEpoch);
            }
        }
        return null;
    }

    /** Kafka proposes once and waits for newer metadata; here, a proposal is repeated at each check of the ISR. */
    private void proposeAgain() throws Exception {
        if (partition.partitionState() instanceof PendingPartitionChange pending && proposals.isEmpty()) {
            Method submit = Partition.class.getDeclaredMethod("submitAlterPartition", PendingPartitionChange.class);
            submit.setAccessible(true);
            submit.invoke(partition, pending);
        }
    }

    /** Answer a proposal. Those before it never leave our broker: one of a partition is under way at a time. */
    private JsonNode answer(JsonNode op) {
        JsonNode wanted = op.get("proposal");
        Proposal oldest = proposals.remove();
        while (!describe(oldest.sent).equals(wanted)) oldest = proposals.remove();
        CompletableFuture<LeaderAndIsr> future = oldest.answer;
        if (op.has("error")) {
            future.completeExceptionally(Errors.valueOf(op.get("error").asText()).exception());
        } else {
            future.complete(new LeaderAndIsr(
                    op.get("leader").asInt(), op.get("leader_epoch").asInt(), numbers(op.get("isr")),
                    LeaderRecoveryState.RECOVERED, op.get("partition_epoch").asInt()));
        }
        complete();
        return null;
    }

    // --- the leader ------------------------------------------------------------------------------------------

    private static MemoryRecords records(JsonNode op) {
        return MemoryRecords.readableRecords(
                java.nio.ByteBuffer.wrap(HexFormat.of().parseHex(op.get("data").asText())));
    }

    private JsonNode append(JsonNode op, AppendOrigin origin) {
        int acks = op.get("acks").asInt();
        LogAppendInfo info = partition.appendRecordsToLeader(
                records(op), origin, acks, RequestLocal.noCaching(), VerificationGuard.SENTINEL);
        if (acks == -1 && op.has("number")) waiting.put(op.get("number").asInt(), info.lastOffset() + 1);
        complete();
        return pair(info.firstOffset(), info.lastOffset());
    }

    private FetchParams params(JsonNode op) throws Exception {
        int replica = op.get("replica").asInt();
        IsolationLevel isolation =
                op.path("committed").asBoolean() ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED;
        return new FetchParams(
                replica, op.get("broker_epoch").asLong(), Long.MAX_VALUE, op.path("min").asInt(), Integer.MAX_VALUE,
                FetchIsolation.of(replica, isolation), Waiting.client(op));
    }

    private FetchRequest.PartitionData wanted(JsonNode op) {
        return new FetchRequest.PartitionData(
                TOPIC_ID, op.get("offset").asLong(), op.get("log_start").asLong(), op.get("max").asInt(),
                epoch(op, "current_epoch"), epoch(op, "last_epoch"));
    }

    private JsonNode fetch(JsonNode op) throws Exception {
        int replica = op.get("replica").asInt();
        LogReadInfo found = partition.fetchRecords(
                params(op), wanted(op), Judge.CLOCK.milliseconds(), op.get("max").asInt(), true, true);
        ObjectNode result = Judge.JSON.createObjectNode();
        result.put("high_watermark", found.highWatermark);
        result.put("start", found.logStartOffset);
        if (replica < 0) result.put("last_stable", found.lastStableOffset);
        result.put("data", HexFormat.of().formatHex(Judge.bytes(found.fetchedData.records)));
        found.divergingEpoch.ifPresent(each -> result.set("diverging", pair(each.epoch(), each.endOffset())));
        return result;
    }

    /** As `ReplicaManager` answers ListOffsets. */
    private JsonNode list(JsonNode op) {
        Option<IsolationLevel> isolation = op.get("replica").asInt() >= 0
                ? Option.empty()
                : Option.apply(op.get("committed").asBoolean() ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED);
        OffsetResultHolder found = partition.fetchOffsetForTimestamp(
                op.get("timestamp").asLong(), isolation, epoch(op, "current_epoch"), true, Option.empty());
        if (found.timestampAndOffsetOpt().isEmpty()) return null;
        TimestampAndOffset each = found.timestampAndOffsetOpt().get();
        if (found.lastFetchableOffset().isPresent() && each.offset >= found.lastFetchableOffset().get()) {
            Optional<ApiException> error = found.maybeOffsetsError();
            if (error.isPresent()) throw error.get();
            return null;
        }
        return pair(each.timestamp, each.offset).add(each.leaderEpoch.orElse(-1));
    }

    /** As `DelayedDeleteRecords` answers at its deadline. */
    private JsonNode delete(long offset) {
        kafka.server.LogDeleteRecordsResult found = partition.deleteRecordsOnLeader(offset);
        ObjectNode result = Judge.JSON.createObjectNode();
        result.put("low_watermark", found.lowWatermark());
        result.put("is_done", found.lowWatermark() >= found.requestedOffset());
        return result;
    }

    // --- the follower ----------------------------------------------------------------------------------------

    /** Kafka's fetcher over one partition. `ReplicaFetcherThread` needs a whole `ReplicaManager`; this is its code. */
    private class Fetcher extends AbstractFetcherThread {
        private final Leader leader;
        private final FailedPartitions failed;

        Fetcher(boolean truncatesOnFetch) { this(new Leader(truncatesOnFetch), new FailedPartitions()); }

        private Fetcher(Leader leader, FailedPartitions failed) {
            super("judged", "judged", leader, failed, new TierStateMachine(leader, null, false), 0, false, Judge.STATS);
            this.leader = leader;
            this.failed = failed;
        }

        private scala.collection.immutable.Set<TopicPartition> only() {
            return CollectionConverters.asScala(Set.of(TP)).toSet();
        }

        void remove() {
            failed.removeAll(only());
            removePartitions(only());
        }

        void add(int leaderId, int leaderEpoch) {
            // As `ReplicaManager`, and as it was before truncation on fetch.
            boolean isAtEnd = leader.truncatesOnFetch && log().latestEpoch().isPresent();
            long offset = isAtEnd ? log().logEndOffset() : log().highWatermark();
            InitialFetchState state = new InitialFetchState(
                    Option.apply(TOPIC_ID), new BrokerEndPoint(leaderId, "localhost", 1), leaderEpoch, offset);
            addPartitions(CollectionConverters.asScala(Map.of(TP, state)));
        }

        /** Begin again, with what the log has now. */
        void again() {
            int leaderEpoch = fetchState(TP).get().currentLeaderEpoch();
            remove();
            add(1, leaderEpoch);
        }

        /** Let it send its next request, and return that; the operation has the answers. */
        JsonNode turn(JsonNode op) {
            leader.answers = op;
            leader.asked = null;
            doWork();
            return leader.asked;
        }

        JsonNode describe() {
            ObjectNode found = Judge.JSON.createObjectNode();
            found.put("failed", failed.contains(TP));
            fetchState(TP).foreach(each -> {
                found.put("offset", each.fetchOffset());
                found.put("leader_epoch", each.currentLeaderEpoch());
                found.put("last_epoch", leader.truncatesOnFetch ? each.lastFetchedEpoch().orElse(-1) : -1);
                found.put("truncating", each.isTruncating());
                return null;
            });
            return found;
        }

        @Override
        public Option<LogAppendInfo> processPartitionData(
                TopicPartition topicPartition, long offset, int leaderEpoch, FetchResponseData.PartitionData data) {
            try {
                UnifiedLog log = log();
                MemoryRecords records = toMemoryRecords(FetchResponse.recordsOrFail(data));
                if (offset != log.logEndOffset()) throw new IllegalStateException("offset mismatch");
                Option<LogAppendInfo> info =
                        partition.appendRecordsToFollowerOrFutureReplica(records, false, leaderEpoch);
                log.maybeUpdateHighWatermark(data.highWatermark());
                log.maybeIncrementLogStartOffset(
                        data.logStartOffset(), LogStartOffsetIncrementReason.LeaderOffsetIncremented);
                return info;
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }

        @Override public void truncate(TopicPartition topicPartition, OffsetTruncationState state) {
            partition.truncateTo(state.offset(), false);
            try {
                // Else the last stable offset is the old one until something moves.
                highWatermarkOnDisk = Math.min(highWatermarkOnDisk, log().updateHighWatermark(log().highWatermark()));
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }

        @Override public void truncateFullyAndStartAt(TopicPartition topicPartition, long offset) {
            partition.truncateFullyAndStartAt(offset, false, Optional.empty());
        }

        @Override public Optional<Integer> latestEpoch(TopicPartition topicPartition) { return log().latestEpoch(); }
        @Override public long logStartOffset(TopicPartition topicPartition) { return log().logStartOffset(); }
        @Override public long logEndOffset(TopicPartition topicPartition) { return log().logEndOffset(); }
        @Override public Optional<OffsetAndEpoch> endOffsetForEpoch(TopicPartition topicPartition, int epoch) {
            return log().endOffsetForEpoch(epoch);
        }
    }

    private class Leader implements LeaderEndPoint {
        private final boolean truncatesOnFetch;
        private JsonNode answers;
        private ObjectNode asked;

        Leader(boolean truncatesOnFetch) { this.truncatesOnFetch = truncatesOnFetch; }

        @Override public boolean isTruncationOnFetchSupported() { return truncatesOnFetch; }
        @Override public void initiateClose() { }
        @Override public void close() { }
        @Override public BrokerEndPoint brokerEndPoint() { return new BrokerEndPoint(1, "localhost", 1); }

        @Override
        public ResultWithPartitions<Optional<ReplicaFetch>> buildFetch(Map<TopicPartition, PartitionFetchState> states) {
            PartitionFetchState state = states.get(TP);
            if (asked != null || state == null || !state.isReadyForFetch()) {
                return new ResultWithPartitions<>(Optional.empty(), Set.of());
            }
            FetchRequest.PartitionData wanted = new FetchRequest.PartitionData(
                    TOPIC_ID, state.fetchOffset(), log().logStartOffset(), 1 << 20,
                    Optional.of(state.currentLeaderEpoch()),
                    truncatesOnFetch ? state.lastFetchedEpoch() : Optional.empty());
            asked = Judge.JSON.createObjectNode();
            asked.put("kind", "fetch");
            asked.put("offset", wanted.fetchOffset);
            asked.put("current_epoch", state.currentLeaderEpoch());
            asked.put("last_epoch", wanted.lastFetchedEpoch.orElse(-1));
            asked.put("log_start", wanted.logStartOffset);
            return new ResultWithPartitions<>(Optional.of(new ReplicaFetch(
                    Map.of(TP, wanted), FetchRequest.Builder.forReplica((short) 13, LOCAL, 1, 0, 0, Map.of()))), Set.of());
        }

        @Override
        public Map<TopicPartition, FetchResponseData.PartitionData> fetch(FetchRequest.Builder request) {
            if (answers.path("begins_anew").asBoolean()) {
                // Else it would keep its producers, which may be of another history than the leader's.
                beginAnew();
            }
            JsonNode answer = answers.get("fetch");
            FetchResponseData.PartitionData data = new FetchResponseData.PartitionData()
                    .setPartitionIndex(TP.partition())
                    .setErrorCode(Errors.valueOf(answer.path("error").asText("NONE")).code())
                    .setHighWatermark(answer.path("high_watermark").asLong(-1))
                    .setLogStartOffset(answer.path("start").asLong(-1))
                    .setRecords(answer.has("data") ? records(answer) : MemoryRecords.EMPTY);
            if (answer.has("diverging")) {
                data.setDivergingEpoch(new FetchResponseData.EpochEndOffset()
                        .setEpoch(answer.get("diverging").get(0).asInt())
                        .setEndOffset(answer.get("diverging").get(1).asLong()));
            }
            return Map.of(TP, data);
        }

        private OffsetAndEpoch bound(String name, int leaderEpoch) {
            asked.putArray(name).add(leaderEpoch);
            JsonNode answer = answers.get(name);
            if (answer.isTextual()) throw Errors.valueOf(answer.asText()).exception();
            return new OffsetAndEpoch(answer.asLong(), leaderEpoch);
        }

        @Override public OffsetAndEpoch fetchEarliestOffset(TopicPartition topicPartition, int epoch) {
            return bound("first", epoch);
        }

        @Override public OffsetAndEpoch fetchLatestOffset(TopicPartition topicPartition, int epoch) {
            return bound("last", epoch);
        }

        @Override public OffsetAndEpoch fetchEarliestLocalOffset(TopicPartition topicPartition, int epoch) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Map<TopicPartition, EpochEndOffset> fetchEpochEndOffsets(Map<TopicPartition, OffsetForLeaderPartition> all) {
            OffsetForLeaderPartition wanted = all.get(TP);
            asked = Judge.JSON.createObjectNode();
            asked.put("kind", "epoch");
            asked.put("current_epoch", wanted.currentLeaderEpoch());
            asked.put("last_epoch", wanted.leaderEpoch());
            JsonNode answer = answers.get("epoch");
            EpochEndOffset end = new EpochEndOffset().setPartition(TP.partition());
            if (answer.isTextual()) {
                end.setErrorCode(Errors.valueOf(answer.asText()).code());
            } else {
                end.setLeaderEpoch(answer.get(0).asInt()).setEndOffset(answer.get(1).asLong());
            }
            return Map.of(TP, end);
        }
    }

    // --- the state -------------------------------------------------------------------------------------------

    private static ArrayNode sorted(scala.collection.Iterable<Object> ids) {
        ArrayNode list = Judge.JSON.createArrayNode();
        TreeSet<Integer> found = new TreeSet<>();
        CollectionConverters.asJava(ids).forEach(each -> found.add((Integer) each));
        found.forEach(list::add);
        return list;
    }

    private static JsonNode describe(LeaderAndIsr sent) {
        TreeMap<Integer, Long> isr = new TreeMap<>();
        for (BrokerState each : sent.isrWithBrokerEpoch()) isr.put(each.brokerId(), each.brokerEpoch());
        String text = Judge.JSON.createObjectNode()
                .put("leader_epoch", sent.leaderEpoch())
                .put("partition_epoch", sent.partitionEpoch())
                .set("isr", Judge.JSON.valueToTree(isr)).toString();
        try {
            return Judge.JSON.readTree(text);  // numbers of the same kinds as in an operation
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private ObjectNode state() {
        if (partition == null || partition.log().isEmpty()) return null;
        ObjectNode state = Judge.JSON.createObjectNode();
        UnifiedLog log = log();
        state.put("start", log.logStartOffset());
        state.put("high_watermark", log.highWatermark());
        state.put("last_stable", log.lastStableOffset());
        state.put("end", log.logEndOffset());
        ArrayNode epochs = state.putArray("epochs");
        for (EpochEntry each : log.leaderEpochCache().epochEntries()) epochs.add(pair(each.epoch, each.startOffset));
        TreeSet<Long> undecided = new TreeSet<>();
        log.producerStateManager().activeProducers().values()
                .forEach(each -> each.currentTxnFirstOffset().ifPresent(undecided::add));
        state.set("undecided", Judge.JSON.valueToTree(undecided));
        state.put("leads", partition.isLeader());
        state.put("leader_epoch", partition.getLeaderEpoch());
        state.put("partition_epoch", partition.getPartitionEpoch());
        fetches.describe(state);
        if (!partition.isLeader()) {
            state.set("fetcher", fetcher.describe());
            return state;
        }
        state.put("under_replicated", partition.isUnderReplicated());
        state.put("under_min_isr", partition.isUnderMinIsr());
        state.put("at_min_isr", partition.isAtMinIsr());
        state.put("epoch_start", (Long) partition.leaderEpochStartOffsetOpt().get());
        state.set("committed", sorted(partition.partitionState().isr()));
        state.set("maximal", sorted(partition.partitionState().maximalIsr()));
        state.put("low_watermark", partition.lowWatermarkIfLeader());
        if (partition.partitionState() instanceof PendingPartitionChange pending) {
            state.set("proposal", describe(pending.sentLeaderAndIsr()));
        }
        ObjectNode replicas = state.putObject("replicas");
        for (Replica each : CollectionConverters.asJava(partition.remoteReplicas())) {
            ReplicaState known = each.stateSnapshot();
            replicas.putObject(String.valueOf(each.brokerId()))
                    .put("end", known.logEndOffset())
                    .put("start", known.logStartOffset())
                    .put("caught_up", known.lastCaughtUpTimeMs())
                    .put("broker_epoch", known.brokerEpoch().orElse(-1L));
        }
        state.set("waiting", Judge.JSON.valueToTree(waiting));
        state.set("acknowledged", Judge.JSON.valueToTree(acknowledged));
        return state;
    }
}
