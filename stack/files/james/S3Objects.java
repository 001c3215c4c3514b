import com.google.common.io.ByteSource;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.util.Collection;
import java.util.concurrent.CompletionException;
import org.apache.commons.configuration2.Configuration;
import org.apache.james.blob.api.BlobId;
import org.apache.james.blob.api.BlobStoreDAO;
import org.apache.james.blob.api.BucketName;
import org.apache.james.blob.api.HashBlobId;
import org.apache.james.blob.api.ObjectNotFoundException;
import org.apache.james.blob.api.ObjectStoreIOException;
import org.reactivestreams.Publisher;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.BytesWrapper;
import software.amazon.awssdk.core.async.AsyncRequestBody;
import software.amazon.awssdk.core.async.AsyncResponseTransformer;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3AsyncClient;
import software.amazon.awssdk.services.s3.S3Configuration;
import software.amazon.awssdk.services.s3.model.Bucket;
import software.amazon.awssdk.services.s3.model.NoSuchKeyException;
import software.amazon.awssdk.services.s3.model.S3Object;

/** James' objects in S3: its key is the blob id, nothing else is stored. */
final class S3Objects implements BlobStoreDAO {
    private final S3AsyncClient client;

    S3Objects(Configuration properties) {
        client = S3AsyncClient.builder()
            .endpointOverride(URI.create(properties.getString("objectstorage.s3.endPoint")))
            .region(Region.of(properties.getString("objectstorage.s3.region")))
            .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create(
                properties.getString("objectstorage.s3.accessKeyId"),
                properties.getString("objectstorage.s3.secretKey"))))
            .serviceConfiguration(S3Configuration.builder().pathStyleAccessEnabled(true).build())
            .httpClientBuilder(NettyNioAsyncHttpClient.builder()
                .maxConcurrency(100)
                .maxPendingConnectionAcquires(10_000))
            .build();
    }

    @Override
    public InputStream read(BucketName bucket, BlobId id)
        throws ObjectStoreIOException, ObjectNotFoundException {
        return new ByteArrayInputStream(bytes(bucket, id).block());
    }

    @Override
    public Publisher<InputStream> readReactive(BucketName bucket, BlobId id) {
        return bytes(bucket, id).map(ByteArrayInputStream::new);
    }

    @Override
    public Publisher<byte[]> readBytes(BucketName bucket, BlobId id) {
        return bytes(bucket, id);
    }

    private Mono<byte[]> bytes(BucketName bucket, BlobId id) {
        return Mono.fromFuture(() -> client.getObject(
                request -> request.bucket(bucket.asString()).key(id.asString()),
                AsyncResponseTransformer.toBytes()))
            .map(BytesWrapper::asByteArrayUnsafe)
            .onErrorMap(CompletionException.class, Throwable::getCause)
            .onErrorMap(NoSuchKeyException.class, error ->
                new ObjectNotFoundException("blob not found " + id.asString(), error));
    }

    @Override
    public Publisher<Void> save(BucketName bucket, BlobId id, byte[] content) {
        return Mono.fromFuture(() -> client.putObject(
                request -> request.bucket(bucket.asString()).key(id.asString()),
                AsyncRequestBody.fromBytes(content)))
            .then();
    }

    @Override
    public Publisher<Void> save(BucketName bucket, BlobId id, InputStream content) {
        return Mono.fromCallable(content::readAllBytes)
            .flatMap(bytes -> Mono.from(save(bucket, id, bytes)));
    }

    @Override
    public Publisher<Void> save(BucketName bucket, BlobId id, ByteSource content) {
        try {
            return save(bucket, id, content.read());
        } catch (IOException error) {
            return Mono.error(error);
        }
    }

    @Override
    public Publisher<Void> delete(BucketName bucket, BlobId id) {
        return Mono.fromFuture(() -> client.deleteObject(
                request -> request.bucket(bucket.asString()).key(id.asString())))
            .then();
    }

    @Override
    public Publisher<Void> delete(BucketName bucket, Collection<BlobId> ids) {
        return Flux.fromIterable(ids).flatMap(id -> delete(bucket, id)).then();
    }

    @Override
    public Publisher<Void> deleteBucket(BucketName bucket) {
        return Mono.error(new UnsupportedOperationException());
    }

    @Override
    public Publisher<BucketName> listBuckets() {
        return Mono.fromFuture(client::listBuckets)
            .flatMapIterable(answer -> answer.buckets())
            .map(Bucket::name)
            .map(BucketName::of);
    }

    @Override
    public Publisher<BlobId> listBlobs(BucketName bucket) {
        HashBlobId.Factory ids = new HashBlobId.Factory();
        return Flux.from(client.listObjectsV2Paginator(request -> request.bucket(bucket.asString()))
                .contents())
            .map(S3Object::key)
            .map(ids::from);
    }
}
