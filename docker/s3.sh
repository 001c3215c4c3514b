#!/bin/bash
# Starts s3proxy with the credential of a secret's file: neither in the environment nor in argv.
# S3PROXY_HOME, SECRET and PROPERTIES are other places in the tests.
set -euo pipefail
home=${S3PROXY_HOME:-/opt/s3proxy}
secret=${SECRET:-/run/secrets/s3_secret_key}
properties=${PROPERTIES:-/tmp/s3proxy.properties}
umask 077
# Java's properties: a backslash begins an escape, and a space before the value would be dropped.
credential=$(sed -e 's/\\/\\\\/g' -e '1s/^ /\\ /' "$secret")
[ -n "$credential" ] || { echo "s3.sh: $secret is empty" >&2; exit 2; }
{ cat "$home/s3proxy.conf"; printf 's3proxy.credential=%s\n' "$credential"; } > "$properties"
# Its own level is debug, which costs two thirds of its speed.
# shellcheck disable=SC2086 # several options
exec java ${JAVA_OPTS:--Xmx2g} -XX:+ExitOnOutOfMemoryError -DLOG_LEVEL=warn \
  -jar "$home/s3proxy" --properties "$properties"
