import com.codahale.metrics.MetricRegistry;
import com.datastax.oss.driver.api.core.CqlSession;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.inject.AbstractModule;
import com.google.inject.Guice;
import com.google.inject.Injector;
import com.google.inject.Provides;
import com.google.inject.Singleton;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.Date;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.commons.configuration2.Configuration;
import org.apache.commons.configuration2.MapConfiguration;
import org.apache.james.backends.cassandra.components.CassandraModule;
import org.apache.james.backends.cassandra.init.SessionWithInitializedTablesFactory;
import org.apache.james.backends.rabbitmq.RabbitMQConfiguration;
import org.apache.james.backends.rabbitmq.RabbitMQConnectionFactory;
import org.apache.james.backends.rabbitmq.ReactorRabbitMQChannelPool;
import org.apache.james.backends.rabbitmq.ReceiverProvider;
import org.apache.james.backends.rabbitmq.SimpleConnectionPool;
import org.apache.james.blob.api.BlobId;
import org.apache.james.blob.api.BlobReferenceSource;
import org.apache.james.blob.api.BlobStore;
import org.apache.james.blob.api.BlobStoreDAO;
import org.apache.james.blob.api.BucketName;
import org.apache.james.blob.api.HashBlobId;
import org.apache.james.core.MailAddress;
import org.apache.james.eventsourcing.eventstore.EventStore;
import org.apache.james.eventsourcing.eventstore.cassandra.CassandraEventStore;
import org.apache.james.eventsourcing.eventstore.cassandra.CassandraEventStoreModule;
import org.apache.james.eventsourcing.eventstore.cassandra.JsonEventSerializer;
import org.apache.james.lifecycle.api.StartUpCheck;
import org.apache.james.metrics.api.GaugeRegistry;
import org.apache.james.metrics.api.MetricFactory;
import org.apache.james.metrics.api.NoopGaugeRegistry;
import org.apache.james.metrics.dropwizard.DropWizardMetricFactory;
import org.apache.james.queue.api.MailQueue;
import org.apache.james.queue.api.MailQueueFactory;
import org.apache.james.queue.api.MailQueueItemDecoratorFactory;
import org.apache.james.queue.api.MailQueueName;
import org.apache.james.queue.api.ManageableMailQueue;
import org.apache.james.queue.api.RawMailQueueItemDecoratorFactory;
import org.apache.james.queue.rabbitmq.RabbitMQMailQueue;
import org.apache.james.queue.rabbitmq.RabbitMQMailQueueFactory;
import org.apache.james.queue.rabbitmq.view.RabbitMQMailQueueConfiguration;
import org.apache.james.queue.rabbitmq.view.api.MailQueueView;
import org.apache.james.queue.rabbitmq.view.cassandra.CassandraMailQueueView;
import org.apache.james.queue.rabbitmq.view.cassandra.CassandraMailQueueViewModule;
import org.apache.james.queue.rabbitmq.view.cassandra.CassandraMailQueueViewStartUpCheck;
import org.apache.james.queue.rabbitmq.view.cassandra.MailQueueViewBlobReferenceSource;
import org.apache.james.queue.rabbitmq.view.cassandra.configuration.CassandraMailQueueViewConfiguration;
import org.apache.james.queue.rabbitmq.view.cassandra.configuration.CassandraMailQueueViewConfigurationModule;
import org.apache.james.server.blob.deduplication.BlobGCTask;
import org.apache.james.server.blob.deduplication.DeDuplicationBlobStore;
import org.apache.james.server.blob.deduplication.GenerationAwareBlobId;
import org.apache.james.server.blob.deduplication.PassThroughBlobStore;
import org.apache.james.server.core.MailImpl;
import org.apache.james.util.MimeMessageUtil;
import org.apache.mailet.Attribute;
import org.apache.mailet.AttributeName;
import org.apache.mailet.AttributeValue;
import org.apache.mailet.Mail;
import org.apache.mailet.PerRecipientHeaders;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;
import reactor.rabbitmq.Sender;

/**
 * The mail queue of a real James: James' own classes, wired as James' own modules wire them, on the
 * stores of the tests.
 *
 * <p>It reads requests from standard input, one JSON object a line, and answers each by one line.
 * The single argument holds James' properties as JSON. S3 alone is reached by a class of ours
 * (S3Objects), because James publishes no library of it.
 */
public final class JamesNode {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Injector injector;
    private final RabbitMQMailQueueFactory factory;

    private JamesNode(Injector injector) {
        this.injector = injector;
        this.factory = injector.getInstance(RabbitMQMailQueueFactory.class);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Configuration properties =
            new MapConfiguration(JSON.readValue(arguments[0], java.util.Map.class));
        JamesNode node;
        try {
            Injector injector = Guice.createInjector(new Wiring(properties));
            StartUpCheck.CheckResult check =
                injector.getInstance(CassandraMailQueueViewStartUpCheck.class).check();
            if (check.isBad()) {
                throw new IllegalStateException(check.getDescription().orElse("refused"));
            }
            node = new JamesNode(injector);
            answers.println("{\"ready\":true}");
        } catch (Exception error) {
            answers.println(failure(error));
            System.exit(1);
            return;
        }
        BufferedReader requests =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String answer;
            try {
                answer = JSON.writeValueAsString(node.answer(JSON.readTree(line)));
            } catch (Exception error) {
                answer = failure(error);
            }
            answers.println(answer);
            answers.flush();
        }
        System.exit(0);
    }

    private static String failure(Exception error) throws Exception {
        error.printStackTrace();
        List<String> causes = new ArrayList<>();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            causes.add(cause.toString());
        }
        return JSON.writeValueAsString(
            JSON.createObjectNode().put("error", String.join("; ", causes)));
    }

    private ObjectNode answer(JsonNode request) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        String operation = request.get("operation").asText();
        if (operation.equals("queues")) {
            ArrayNode names = answer.putArray("queues");
            factory.listCreatedMailQueues().forEach(name -> names.add(name.asString()));
            return answer;
        }
        if (operation.equals("collect_blobs")) {
            return answer.put("result", collectBlobs().toString());
        }
        RabbitMQMailQueue queue = factory.createQueue(
            MailQueueName.of(request.get("queue").asText()),
            MailQueueFactory.prefetchCount(request.path("prefetch").asInt(100)));
        switch (operation) {
            case "create":
                return answer;
            case "enqueue":
                return enqueue(queue, request);
            case "dequeue":
                return dequeue(queue, request);
            case "size":
                return answer.put("size", queue.getSize());
            case "browse":
                ArrayNode mails = answer.putArray("mails");
                ManageableMailQueue.MailQueueIterator items = queue.browse();
                try {
                    while (items.hasNext()) {
                        mails.add(written(items.next().getMail()));
                    }
                } finally {
                    items.close();
                }
                return answer;
            case "remove":
                return answer.put("removed", queue.remove(
                    ManageableMailQueue.Type.valueOf(request.get("type").asText()),
                    request.get("value").asText()));
            case "clear":
                return answer.put("cleared", queue.clear());
            case "republish":
                Instant before = Instant.ofEpochMilli(request.get("olderThan").asLong());
                ArrayNode republished = answer.putArray("names");
                queue.republishNotProcessedMails(before).toStream().forEach(republished::add);
                return answer;
            default:
                throw new IllegalArgumentException(operation);
        }
    }

    private ObjectNode enqueue(RabbitMQMailQueue queue, JsonNode request) throws Exception {
        List<Mail> mails = new ArrayList<>();
        for (JsonNode mail : request.get("mails")) {
            for (int copy = 0; copy < request.path("copies").asInt(1); copy++) {
                mails.add(read(mail, copy));
            }
        }
        long begun = System.nanoTime();
        Flux.fromIterable(mails)
            .flatMap(queue::enqueueReactive, request.path("inFlight").asInt(1))
            .blockLast();
        double seconds = (System.nanoTime() - begun) / 1e9;
        return JSON.createObjectNode().put("count", mails.size()).put("seconds", seconds);
    }

    /** Hands out mails until `count` are complete or none came for `idle` milliseconds. */
    private ObjectNode dequeue(RabbitMQMailQueue queue, JsonNode request) throws Exception {
        MailQueue.MailQueueItem.CompletionStatus outcome =
            MailQueue.MailQueueItem.CompletionStatus.valueOf(request.get("outcome").asText());
        int count = request.get("count").asInt();
        boolean isListed = request.path("mails").asBoolean(true);
        List<ObjectNode> mails = Collections.synchronizedList(new ArrayList<>());
        long[] times = new long[2];
        AtomicInteger taken = new AtomicInteger();
        // Mails beyond the count stay unsettled: they return to the queue with the channel's end,
        // which must not come before the last outcome is written.
        // retry: James waits for its own mark of a deleted mail on the thread that would read the
        // answer. The driver gives up after 2 s, which ends the flux.
        long complete = Flux.defer(queue::deQueue)
            .retry()
            .filter(item -> taken.incrementAndGet() <= count)
            .flatMap(item -> Mono.fromCallable(() -> {
                synchronized (times) {
                    times[0] = times[0] == 0 ? System.nanoTime() : times[0];
                }
                if (isListed) {
                    mails.add(written(item.getMail()));
                }
                item.done(outcome);
                synchronized (times) {
                    times[1] = System.nanoTime();
                }
                return item;
            }).subscribeOn(Schedulers.boundedElastic()), request.path("inFlight").asInt(1))
            .take(count)
            .timeout(Duration.ofMillis(request.path("idle").asLong(20_000)), Mono.empty())
            .count()
            .block();
        ObjectNode answer = JSON.createObjectNode().put("count", complete);
        answer.put("seconds", (times[1] - times[0]) / 1e9);
        mails.forEach(answer.withArray("mails")::add);
        return answer;
    }

    private Object collectBlobs() {
        Set<BlobReferenceSource> sources =
            Set.of(injector.getInstance(MailQueueViewBlobReferenceSource.class));
        BlobStoreDAO objects = injector.getInstance(BlobStoreDAO.class);
        return new BlobGCTask(
            objects,
            injector.getInstance(GenerationAwareBlobId.Factory.class),
            injector.getInstance(GenerationAwareBlobId.Configuration.class),
            sources,
            injector.getInstance(BucketName.class),
            injector.getInstance(Clock.class),
            10_000, 100, 0.01).run();
    }

    private static Mail read(JsonNode json, int copy) throws Exception {
        String name = json.get("name").asText() + (copy == 0 ? "" : "-" + copy);
        MailImpl.Builder mail = MailImpl.builder()
            .name(name)
            .mimeMessage(MimeMessageUtil.mimeMessageFromBytes(
                Base64.getDecoder().decode(json.get("mime").asText())));
        if (!json.path("sender").isNull() && json.has("sender")) {
            mail.sender(json.get("sender").asText());
        }
        for (JsonNode recipient : json.get("recipients")) {
            mail.addRecipient(recipient.asText());
        }
        json.path("attributes").fields().forEachRemaining(entry -> mail.addAttribute(
            new Attribute(AttributeName.of(entry.getKey()), attribute(entry.getValue()))));
        if (json.hasNonNull("state")) {
            mail.state(json.get("state").asText());
        }
        if (json.hasNonNull("errorMessage")) {
            mail.errorMessage(json.get("errorMessage").asText());
        }
        if (json.hasNonNull("lastUpdated")) {
            mail.lastUpdated(new Date(json.get("lastUpdated").asLong()));
        }
        if (json.hasNonNull("remoteAddr")) {
            mail.remoteAddr(json.get("remoteAddr").asText());
        }
        if (json.hasNonNull("remoteHost")) {
            mail.remoteHost(json.get("remoteHost").asText());
        }
        for (JsonNode header : json.path("headers")) {
            mail.addHeaderForRecipient(
                PerRecipientHeaders.Header.builder()
                    .name(header.get(1).asText()).value(header.get(2).asText()).build(),
                new MailAddress(header.get(0).asText()));
        }
        return mail.build();
    }

    private static AttributeValue<?> attribute(JsonNode json) {
        try {
            return AttributeValue.fromJsonString(json.asText());
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private static ObjectNode written(Mail mail) throws Exception {
        ObjectNode json = JSON.createObjectNode().put("name", mail.getName());
        json.put("sender",
            mail.getMaybeSender().asOptional().map(MailAddress::asString).orElse(null));
        ArrayNode recipients = json.putArray("recipients");
        mail.getRecipients().forEach(recipient -> recipients.add(recipient.asString()));
        ObjectNode attributes = json.putObject("attributes");
        mail.attributes().forEach(attribute -> attribute.getValue().toJson().ifPresent(
            value -> attributes.put(attribute.getName().asString(), value.toString())));
        json.put("state", mail.getState());
        json.put("errorMessage", mail.getErrorMessage());
        json.put("remoteAddr", mail.getRemoteAddr());
        json.put("remoteHost", mail.getRemoteHost());
        if (mail.getLastUpdated() != null) {
            json.put("lastUpdated", mail.getLastUpdated().getTime());
        }
        ArrayNode headers = json.putArray("headers");
        mail.getPerRecipientSpecificHeaders().getHeadersByRecipient().forEach((recipient, header) ->
            headers.addArray()
                .add(recipient.asString()).add(header.getName()).add(header.getValue()));
        json.put("mime", Base64.getEncoder().encodeToString(
            MimeMessageUtil.asBytes(mail.getMessage())));
        return json;
    }

    /** What James' modules bind for the distributed server. */
    private static final class Wiring extends AbstractModule {
        private final Configuration properties;

        Wiring(Configuration properties) {
            this.properties = properties;
        }

        @Override
        protected void configure() {
            bind(Clock.class).toInstance(Clock.systemUTC());
            bind(GaugeRegistry.class).to(NoopGaugeRegistry.class);
            bind(MetricFactory.class).toInstance(new DropWizardMetricFactory(new MetricRegistry()));
            bind(EventStore.class).to(CassandraEventStore.class);
            bind(MailQueueView.Factory.class).to(CassandraMailQueueView.Factory.class);
            bind(MailQueueItemDecoratorFactory.class).to(RawMailQueueItemDecoratorFactory.class);
            bind(CassandraMailQueueViewConfiguration.class)
                .toInstance(CassandraMailQueueViewConfiguration.from(properties));
            bind(RabbitMQMailQueueConfiguration.class)
                .toInstance(RabbitMQMailQueueConfiguration.from(properties));
            bind(RabbitMQConfiguration.class).toInstance(RabbitMQConfiguration.from(properties));
            bind(GenerationAwareBlobId.Configuration.class)
                .toInstance(GenerationAwareBlobId.Configuration.parse(properties));
            bind(BucketName.class).toInstance(BucketName.of(properties.getString("bucket")));
            bind(BlobStoreDAO.class).toInstance(new S3Objects(properties));
            bind(JsonEventSerializer.class).toInstance(JsonEventSerializer
                .forModules(CassandraMailQueueViewConfigurationModule.MAIL_QUEUE_VIEW_CONFIGURATION)
                .withoutNestedType());
        }

        @Provides
        @Singleton
        CqlSession session() {
            // Not by James' ClusterFactory: it asks for dateOf(now()), which Cassandra 5 has not.
            String[] address = properties.getString("cassandra.nodes").split(":");
            CqlSession session = CqlSession.builder()
                .addContactPoint(
                    new InetSocketAddress(address[0], Integer.parseInt(address[1])))
                .withLocalDatacenter(properties.getString("cassandra.local.dc"))
                .withKeyspace(properties.getString("cassandra.keyspace"))
                .build();
            CassandraModule tables = CassandraModule.aggregateModules(
                CassandraMailQueueViewModule.MODULE, CassandraEventStoreModule.MODULE());
            return new SessionWithInitializedTablesFactory(session, tables).get();
        }

        @Provides
        @Singleton
        ReactorRabbitMQChannelPool channels(RabbitMQConfiguration rabbitMQ, MetricFactory metrics) {
            SimpleConnectionPool connections = new SimpleConnectionPool(
                new RabbitMQConnectionFactory(rabbitMQ),
                SimpleConnectionPool.Configuration.DEFAULT);
            connections.init(Set.of());
            ReactorRabbitMQChannelPool channels = new ReactorRabbitMQChannelPool(
                connections.getResilientConnection(),
                ReactorRabbitMQChannelPool.Configuration.DEFAULT,
                metrics);
            channels.start();
            return channels;
        }

        @Provides
        @Singleton
        Sender sender(ReactorRabbitMQChannelPool channels) {
            return channels.getSender();
        }

        @Provides
        @Singleton
        ReceiverProvider receivers(ReactorRabbitMQChannelPool channels) {
            return channels::createReceiver;
        }

        @Provides
        @Singleton
        GenerationAwareBlobId.Factory generations(
            Clock clock, GenerationAwareBlobId.Configuration configuration) {
            return new GenerationAwareBlobId.Factory(
                clock, new HashBlobId.Factory(), configuration);
        }

        @Provides
        @Singleton
        BlobId.Factory blobIds(GenerationAwareBlobId.Factory generations) {
            return isDeduplicated() ? generations : new HashBlobId.Factory();
        }

        @Provides
        @Singleton
        BlobStore blobs(BlobStoreDAO objects, BucketName bucket, BlobId.Factory ids) {
            return isDeduplicated()
                ? new DeDuplicationBlobStore(objects, bucket, ids)
                : new PassThroughBlobStore(objects, bucket, ids);
        }

        private boolean isDeduplicated() {
            return properties.getBoolean("deduplication.enable", false);
        }
    }
}
