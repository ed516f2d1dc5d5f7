// Apache Kafka's own log, driven by operations: one JSON line in, one JSON line out.
//
// The clock is the one that the operations give. Scheduled work runs when it is due: at once, or when the clock
// reaches its time; periodic work never runs. What Kafka's managers remember outside of a log (checkpoints of the
// recovery point and the cleaner) comes with the operations. Each answer has `result` or `error`, and `state`.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.HexFormat;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Records;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.RecordValidationException;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class Judge {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Clock CLOCK = new Clock();
    static final BrokerTopicStats STATS = new BrokerTopicStats(false);

    private UnifiedLog log;
    private LogDirFailureChannel failures;

    static class Clock implements Time, Scheduler {
        record Task(long at, Runnable action) {}

        private final List<Task> tasks = new ArrayList<>();
        private final ScheduledThreadPoolExecutor never = new ScheduledThreadPoolExecutor(1);
        private long now;

        void set(long to) {
            now = to;
            while (true) {
                Optional<Task> next = tasks.stream().min(Comparator.comparingLong(Task::at));
                if (next.isEmpty() || next.get().at > now) return;
                tasks.remove(next.get());
                next.get().action.run();
            }
        }

        void forget() {
            tasks.clear();
        }

        @Override public long milliseconds() { return now; }
        @Override public long nanoseconds() { return now * 1_000_000; }
        @Override public void sleep(long ms) { throw new UnsupportedOperationException(); }
        @Override public void waitObject(Object what, Supplier<Boolean> condition, long deadline) {
            throw new UnsupportedOperationException();
        }
        @Override public void startup() { }
        @Override public void shutdown() { never.shutdownNow(); }
        @Override public void resizeThreadPool(int size) { }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delay, long period) {
            ScheduledFuture<?> handle = never.schedule(() -> { }, 1000, TimeUnit.DAYS);
            if (period < 0 && delay <= 0) task.run();
            else if (period < 0) tasks.add(new Task(now + delay, task));
            return handle;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Judge judge = new Judge();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", judge.perform(JSON.readTree(line)));
            } catch (Exception | AssertionError error) {
                Throwable cause = error instanceof RecordValidationException wrapper ? wrapper.invalidException() : error;
                String name = Errors.forException(cause).name();
                answer.put("error", name.equals("UNKNOWN_SERVER_ERROR") ? error.getClass().getSimpleName() : name);
                answer.put("message", String.valueOf(error.getMessage()));
            }
            if (judge.log != null) answer.set("state", judge.state());
            System.out.println(JSON.writeValueAsString(answer));
        }
        System.exit(0);
    }

    private JsonNode perform(JsonNode op) throws Exception {
        long offset = op.path("offset").asLong();
        switch (op.get("op").asText()) {
            case "open": return open(op);
            case "clock":
                CLOCK.set(op.get("now").asLong());
                return null;
            case "configure":
                log.updateConfig(config(op));
                return null;
            case "append": return append(op);
            case "follow":
                LogAppendInfo info = log.appendAsFollower(records(op), op.get("epoch").asInt());
                touch();
                return appended(info);
            case "assign":
                log.assignEpochStartOffset(op.get("epoch").asInt(), op.path("offset").asLong(log.logEndOffset()));
                return null;
            case "high_watermark": return JSON.valueToTree(log.updateHighWatermark(offset));
            case "read": return read(op, offset);
            case "time": return time(op.get("timestamp").asLong());
            case "epoch_end":
                Optional<OffsetAndEpoch> end = log.endOffsetForEpoch(op.get("epoch").asInt());
                return end.isEmpty() ? null : JSON.createArrayNode().add(end.get().epoch()).add(end.get().offset());
            case "truncate":
                boolean isShorter = log.truncateTo(offset);
                touch();
                return JSON.valueToTree(isShorter);
            case "restart":
                log.truncateFullyAndStartAt(offset, Optional.empty());
                return null;
            case "start":
                return JSON.valueToTree(log.maybeIncrementLogStartOffset(
                        offset, LogStartOffsetIncrementReason.ClientRecordDeletion));
            case "roll":
                if (log.activeSegment().size() > 0) log.roll();
                return null;
            case "roll_at":
                log.roll(Optional.of(offset));
                return null;
            case "retain": return JSON.valueToTree(log.deleteOldSegments());
            case "expire":
                log.removeExpiredProducers(CLOCK.milliseconds());
                return null;
            case "flush":
                log.flush(false);
                return null;
            case "nothing": return null;
            case "compact": return compact(op);
            case "close":
                log.flush(true);
                log.close();
                log = null;
                CLOCK.forget();
                return null;
            case "abandon":
                log.closeHandlers();
                log = null;
                CLOCK.forget();
                return null;
            default: throw new IllegalArgumentException(op.toString());
        }
    }

    private static MemoryRecords records(JsonNode op) {
        return MemoryRecords.readableRecords(ByteBuffer.wrap(HexFormat.of().parseHex(op.get("data").asText())));
    }

    private static LogConfig config(JsonNode op) {
        Properties settings = new Properties();
        op.get("config").properties().forEach(each -> settings.put(each.getKey(), each.getValue().asText()));
        return new LogConfig(settings);
    }

    private JsonNode open(JsonNode op) throws Exception {
        CLOCK.set(op.get("now").asLong());
        failures = new LogDirFailureChannel(10);
        log = UnifiedLog.create(
                new File(op.get("directory").asText()),
                config(op),
                op.get("start").asLong(),
                op.get("recovery_point").asLong(),
                CLOCK,
                STATS,
                CLOCK,
                15 * 60_000,
                new ProducerStateManagerConfig(op.get("producer_expiration").asInt(), false),
                600_000,
                failures,
                op.get("clean").asBoolean(),
                Optional.empty());
        log.updateHighWatermark(op.get("high_watermark").asLong());
        return null;
    }

    /** Give the active segment the time of its last write: retention asks for it where no record has a time. */
    private void touch() {
        log.activeSegment().log().file().setLastModified(CLOCK.milliseconds());
    }

    private JsonNode append(JsonNode op) throws Exception {
        AppendOrigin origin = AppendOrigin.valueOf(op.get("origin").asText());
        LogAppendInfo info = log.appendAsLeader(records(op), op.get("epoch").asInt(), origin);
        touch();
        return appended(info);
    }

    private static JsonNode appended(LogAppendInfo info) {
        if (info.validBytes() == 0) return null;
        return JSON.createArrayNode().add(info.firstOffset()).add(info.lastOffset());
    }

    private JsonNode read(JsonNode op, long offset) throws Exception {
        FetchDataInfo found = log.read(
                offset,
                op.get("max").asInt(),
                FetchIsolation.valueOf(op.get("isolation").asText()),
                op.get("at_least_one").asBoolean());
        ObjectNode result = JSON.createObjectNode();
        result.put("data", HexFormat.of().formatHex(bytes(found.records)));
        ArrayNode aborted = result.putArray("aborted");
        found.abortedTransactions.ifPresent(all -> all.forEach(
                each -> aborted.addArray().add(each.producerId()).add(each.firstOffset())));
        return result;
    }

    static byte[] bytes(Records records) throws Exception {
        ByteBuffer buffer = ByteBuffer.allocate(records.sizeInBytes());
        if (records instanceof FileRecords file) {
            file.readInto(buffer, 0);
        } else {
            buffer.put(((MemoryRecords) records).buffer().duplicate());
        }
        return buffer.array();
    }

    private JsonNode time(long timestamp) {
        Optional<FileRecords.TimestampAndOffset> found =
                log.fetchOffsetByTimestamp(timestamp, Optional.empty()).timestampAndOffsetOpt();
        if (found.isEmpty()) return null;
        return JSON.createArrayNode()
                .add(found.get().timestamp).add(found.get().offset).add(found.get().leaderEpoch.orElse(-1));
    }

    private JsonNode compact(JsonNode op) throws Exception {
        long now = CLOCK.milliseconds();
        LogCleanerManager.OffsetsToClean range =
                LogCleanerManager.cleanableOffsets(log, Optional.of(op.get("first_dirty").asLong()), now);
        LogToClean what = new LogToClean(log, range.firstDirtyOffset(), range.firstUncleanableDirtyOffset(), false);
        ObjectNode result = JSON.createObjectNode();
        result.put("first_dirty", what.firstDirtyOffset());
        result.put("first_uncleanable", what.firstUncleanableOffset());
        result.put("clean_bytes", what.cleanBytes());
        result.put("cleanable_bytes", what.cleanableBytes());
        if (what.cleanableBytes() > 0) {
            Throttler throttler = new Throttler(Double.MAX_VALUE, Long.MAX_VALUE, "judge", "entries", CLOCK);
            Cleaner cleaner = new Cleaner(
                    0, new SkimpyOffsetMap(1 << 20), 1 << 16, 1 << 20, 0.9, throttler, CLOCK, partition -> { });
            result.put("end", cleaner.clean(what).getKey());
        }
        return result;
    }

    private ObjectNode state() {
        ObjectNode state = JSON.createObjectNode();
        try {
            state.put("start", log.logStartOffset());
            state.put("high_watermark", log.highWatermark());
            state.put("last_stable", log.lastStableOffset());
            state.put("end", log.logEndOffset());
            state.put("recovery_point", log.recoveryPoint());
            ArrayNode segments = state.putArray("segments");
            for (LogSegment each : log.logSegments()) {
                segments.addArray().add(each.baseOffset()).add(each.size()).add(each.maxTimestampSoFar());
            }
            ArrayNode epochs = state.putArray("epochs");
            for (EpochEntry each : log.leaderEpochCache().epochEntries()) {
                epochs.addArray().add(each.epoch).add(each.startOffset);
            }
            ObjectNode producers = state.putObject("producers");
            for (ProducerStateEntry each : log.producerStateManager().activeProducers().values()) {
                ObjectNode entry = producers.putObject(String.valueOf(each.producerId()));
                entry.put("epoch", each.producerEpoch());
                entry.put("coordinator_epoch", each.coordinatorEpoch());
                entry.put("last_timestamp", each.lastTimestamp());
                entry.put("transaction", each.currentTxnFirstOffset().orElse(-1));
                ArrayNode batches = entry.putArray("batches");
                for (BatchMetadata batch : each.batchMetadata()) {
                    batches.addArray().add(batch.lastSeq).add(batch.lastOffset).add(batch.offsetDelta)
                            .add(batch.timestamp);
                }
            }
        } catch (Exception error) {
            state.put("failure", error.toString());
        }
        return state;
    }
}
