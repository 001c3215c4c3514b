# Fills the data folder where there is none, then becomes the server:
# mariadb.sh FOLDER INSTALLER SERVER ARGUMENT...
# A start that is killed leaves data.partial behind; the next start removes it.
folder=$1 installer=$2 server=$3
shift 3
# An own tmpdir: a server removes all temporary tables that it finds, those of others, too.
mkdir -p "$folder/tmp"
set -- "$@" --tmpdir="$folder/tmp"
if [ ! -d "$folder/data" ]; then
  rm -rf "$folder/data.partial"
  "$installer" "$@" --datadir="$folder/data.partial" --skip-test-db \
    --auth-root-authentication-method=normal >"$folder/install.log" 2>&1 ||
    { tail -n 3 "$folder/install.log"; exit 1; }
  mv "$folder/data.partial" "$folder/data"
fi
exec "$server" "$@" --datadir="$folder/data"
