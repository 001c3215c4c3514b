#!/bin/sh
# Writes a random secret into .secrets/ for each file of docker-compose.yaml that has none yet.
# A file with a secret stays: put your own secret of any characters into it, on one line.
set -eu
folder=${1:-.secrets}
mkdir -p "$folder"
# Nobody but you enters the folder. The files are readable to all in it: Compose mounts each as it
# is, and the containers' users are not you.
chmod 700 "$folder"
umask 022
for name in postgres_password rabbitmq_password s3_secret_key smtp_password \
  airflow_admin_password airflow_jwt_secret airflow_fernet_key; do
  [ -s "$folder/$name" ] && continue
  # 32 bytes in base64url, the form that a Fernet key must have.
  head -c 32 /dev/urandom | base64 | tr '+/' '-_' > "$folder/$name"
  echo "wrote $folder/$name"
done
