"""Configuration properties of Apache James that mailslice's settings may name.

Source: James' distributed server of August 2026: the classes that read each file, its sample
configuration, and the reference of the DataStax Java driver for cassandra-driver.conf.
"""

JAMES_PROPERTIES = {
    "blob.properties": {
        "deduplication.enable",
        "deduplication.gc.generation.duration",
        "deduplication.gc.generation.family",
        "implementation",
        "objectstorage.bucketPrefix",
        "objectstorage.namespace",
        "objectstorage.s3.accessKeyId",
        "objectstorage.s3.endPoint",
        "objectstorage.s3.read.timeout",
        "objectstorage.s3.region",
        "objectstorage.s3.secretKey",
        "objectstorage.s3.truststore.path",
    },
    "cassandra.properties": {
        "cassandra.keyspace",
        "cassandra.local.dc",
        "cassandra.nodes",
        "cassandra.password",
        "cassandra.user",
    },
    "cassandra-driver.conf": {
        "advanced.ssl-engine-factory",
        "advanced.ssl-engine-factory.hostname-validation",
        "basic.request.consistency",
        "basic.request.timeout",
    },
    "jvm.properties": {"james.blob.id.hash.encoding"},
    "rabbitmq.properties": {
        "mailqueue.view.bucketCount",
        "mailqueue.view.sliceWindow",
        "mailqueue.view.updateBrowseStartPace",
        "management.password",
        "management.uri",
        "management.user",
        "quorum.queues.delivery.limit",
        "quorum.queues.enable",
        "quorum.queues.replication.factor",
        "ssl.hostname.verifier",
        "uri",
    },
    "smtpserver.xml": {"maxmessagesize"},
}
